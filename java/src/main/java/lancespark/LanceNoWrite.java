package lancespark;

import org.apache.spark.sql.connector.write.*;

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
