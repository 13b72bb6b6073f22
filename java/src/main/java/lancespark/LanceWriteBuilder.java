package lancespark;

import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;

/** Spark's own write of a Python data source, which can also replace the rows that a condition names: a statement of {@link RowLevelCommand}. */
final class LanceWriteBuilder implements SupportsOverwriteV2, SupportsDynamicOverwrite {
  private final PythonWriteBuilder python;
  private final boolean replaces;
  private boolean conditional;

  /** `replaces`: a staged table, of which the old rows go. */
  LanceWriteBuilder(PythonWriteBuilder python, boolean replaces) {
    this.python = python;
    this.replaces = replaces;
  }

  public WriteBuilder truncate() {
    python.truncate();
    return this;
  }

  /** A table without partitions is one partition. */
  public WriteBuilder overwriteDynamicPartitions() {
    return truncate();
  }

  public WriteBuilder overwrite(Predicate[] predicates) {
    if (predicates.length == 1 && predicates[0] instanceof AlwaysTrue) return truncate();
    conditional = true;
    return this;
  }

  public Write build() {
    if (conditional) return new LanceReplaceWhere();
    if (replaces) python.truncate();
    return python.build();
  }
}
