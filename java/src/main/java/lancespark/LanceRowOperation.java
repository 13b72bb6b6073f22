package lancespark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

final class LanceRowOperation implements SupportsDelta {
  private final LanceTable table;
  private final RowLevelOperation.Command command;

  LanceRowOperation(LanceTable table, RowLevelOperation.Command command) {
    this.table = table;
    this.command = command;
  }

  public RowLevelOperation.Command command() {
    return command;
  }

  public NamedReference[] rowId() {
    return new NamedReference[] {Expressions.column("_rowaddr")};
  }

  /** So that conditions and values may name them: the query of the rows has no other columns of rows. */
  public NamedReference[] requiredMetadataAttributes() {
    MetadataColumn[] all = table.metadataColumns();
    List others = new ArrayList();
    for (int i = 0; i < all.length; i++) {
      if (!all[i].name().equals("_rowaddr")) others.add(Expressions.column(all[i].name()));
    }
    return (NamedReference[]) others.toArray(new NamedReference[0]);
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.newScanBuilder(options);
  }

  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new LanceNoWrite(command);
  }
}
