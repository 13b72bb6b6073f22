package lancespark;

import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;

/** A write that replaces all rows where Spark asks for those of some partitions: a table without partitions is one. */
final class LanceOverwrite implements SupportsTruncate, SupportsDynamicOverwrite {
  private final PythonWriteBuilder python;

  LanceOverwrite(PythonWriteBuilder python) {
    this.python = python;
  }

  public WriteBuilder truncate() {
    python.truncate();
    return this;
  }

  public WriteBuilder overwriteDynamicPartitions() {
    return truncate();
  }

  public Write build() {
    return python.build();
  }
}
