package lancespark;

import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Has Spark's analyzer turn UPDATE, DELETE and MERGE into a query of the rows that change, with their addresses: it aligns and casts what is
 * assigned, and checks conditions and clauses. {@link LanceStatement} then runs that query and commits; Spark never writes with this.
 */
final class LanceRowLevel implements RowLevelOperationBuilder {
  private final LanceTable table;
  private final RowLevelOperation.Command command;

  LanceRowLevel(LanceTable table, RowLevelOperation.Command command) {
    this.table = table;
    this.command = command;
  }

  public RowLevelOperation build() {
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
    throw new UnsupportedOperationException(command + " of a Lance table needs lance_spark.enable_pushdown(spark), which is not active"
        + " in this session - nothing was changed");
  }
}
