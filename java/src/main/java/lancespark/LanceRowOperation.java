package lancespark;

import java.util.Arrays;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** UPDATE, DELETE or MERGE of a table, with `_rowaddr` as the id of a row. */
record LanceRowOperation(LanceTable table, RowLevelOperation.Command command)
    implements SupportsDelta {
  private static final String ADDRESS = "_rowaddr";

  @Override
  public NamedReference[] rowId() {
    return new NamedReference[] {Expressions.column(ADDRESS)};
  }

  /** Conditions and values may use the other row columns. */
  @Override
  public NamedReference[] requiredMetadataAttributes() {
    return Arrays.stream(table.metadataColumns())
        .map(MetadataColumn::name)
        .filter(name -> !name.equals(ADDRESS))
        .map(Expressions::column)
        .toArray(NamedReference[]::new);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.newScanBuilder(options);
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new LanceNoWrite(command);
  }
}
