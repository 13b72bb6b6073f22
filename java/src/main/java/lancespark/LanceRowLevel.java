package lancespark;

import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/**
 * Has Spark's analyzer turn UPDATE, DELETE and MERGE into a query of the rows that change, with their addresses: it aligns and casts what is
 * assigned, and checks conditions and clauses. {@link RowLevelCommand} then runs that query and commits; Spark never writes with this.
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
