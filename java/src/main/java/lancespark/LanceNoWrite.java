package lancespark;

import org.apache.spark.sql.connector.write.*;

/** A write of UPDATE, DELETE or MERGE until the planner rule replaces the plan. */
record LanceNoWrite(RowLevelOperation.Command command) implements DeltaWriteBuilder, DeltaWrite {
  @Override
  public DeltaWrite build() {
    return this;
  }

  @Override
  public DeltaBatchWrite toBatch() {
    throw refusal(command);
  }

  /** Returns the error of a statement in a session without the planner rule. */
  static UnsupportedOperationException refusal(RowLevelOperation.Command command) {
    return refusal(command.toString());
  }

  static UnsupportedOperationException refusal(String statement) {
    return new UnsupportedOperationException(
        statement
            + " of a Lance table needs lance_spark.enable_pushdown(spark), which is not active in"
            + " this session. Nothing was changed. Call the function first.");
  }
}
