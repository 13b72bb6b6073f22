package lancespark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/**
 * Has Spark's analyzer turn UPDATE, DELETE and MERGE into a query of the rows that change, with their addresses: it aligns and casts what is
 * assigned, and checks conditions and clauses. {@link LanceStatement} then runs that query and commits; Spark never writes with this.
 */
final class LanceRowLevel implements RowLevelOperationBuilder {
  private static final String KEPT = "__row_operation";
  private final LanceTable table;
  private final RowLevelOperation.Command command;
  private final CaseInsensitiveStringMap options;

  LanceRowLevel(LanceTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.command = info.command();
    this.options = info.options();
  }

  public RowLevelOperation build() {
    table.checkStatement(command.toString(), options);
    String[] names = table.schema().fieldNames();
    for (int i = 0; i < names.length; i++) {
      if (!names[i].equalsIgnoreCase(KEPT) || command == RowLevelOperation.Command.DELETE) continue;
      Platform.throwException(table.refusal(command.toString().toLowerCase(), "Spark keeps the name " + KEPT + " for itself: rename the column"));
    }
    return new LanceRowOperation(table, command);
  }
}

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

/** What stays in the plan where no rule replaces it. */
final class LanceNoWrite implements DeltaWriteBuilder, DeltaWrite {
  private final RowLevelOperation.Command command;

  LanceNoWrite(RowLevelOperation.Command command) {
    this.command = command;
  }

  public DeltaWrite build() {
    return this;
  }

  public DeltaBatchWrite toBatch() {
    throw refusal(command);
  }

  static UnsupportedOperationException refusal(RowLevelOperation.Command command) {
    return new UnsupportedOperationException(command + " of a Lance table needs lance_spark.enable_pushdown(spark), which is not active"
        + " in this session - nothing was changed");
  }
}
