package lancespark;

import java.util.Arrays;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Makes Spark's analyzer rewrite UPDATE, DELETE and MERGE as a query of the changed rows with their
 * addresses. The analyzer aligns and casts values and checks conditions and clauses. A {@link
 * RowLevelCommand} then runs the query and commits. Spark never writes with this builder.
 */
final class LanceRowLevel implements RowLevelOperationBuilder {
  private static final String RESERVED = "__row_operation";
  private final LanceTable table;
  private final RowLevelOperation.Command command;
  private final CaseInsensitiveStringMap options;

  LanceRowLevel(LanceTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.command = info.command();
    this.options = info.options();
  }

  @Override
  public RowLevelOperation build() {
    table.checkStatement(command.toString(), options);
    boolean reserved =
        command != RowLevelOperation.Command.DELETE
            && Arrays.stream(table.schema().fieldNames()).anyMatch(RESERVED::equalsIgnoreCase);
    if (reserved) {
      throw Errors.thrown(
          table.refusal(
              AddRowCounts.nameOf(command),
              "Spark keeps the name " + RESERVED + " for itself. Rename the column."));
    }
    return new LanceRowOperation(table, command);
  }
}
