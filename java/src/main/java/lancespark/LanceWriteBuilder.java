package lancespark;

import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;

/**
 * A write to a table of the catalog. A {@link RowLevelCommand} replaces the rows of a condition.
 */
final class LanceWriteBuilder extends LanceOverwrite implements SupportsOverwriteV2 {
  private final boolean replaces;
  private final LanceTable table;
  private boolean conditional;

  /** Takes Spark's own builder. A staged table replaces its present rows. */
  LanceWriteBuilder(PythonWriteBuilder python, boolean replaces, LanceTable table) {
    super(python);
    this.replaces = replaces;
    this.table = table;
  }

  @Override
  public WriteBuilder truncate() {
    return super.truncate();
  }

  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    if (predicates.length == 1 && predicates[0] instanceof AlwaysTrue) return truncate();
    conditional = true;
    return this;
  }

  @Override
  public Write build() {
    if (conditional) return new LanceReplaceWhere();
    if (replaces) truncate();
    Write write = super.build();
    return table.addedColumns == null ? write : new EvolvedWrite(write, table);
  }
}
