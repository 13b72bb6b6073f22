package lancespark;

import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/**
 * A write that replaces all rows. A dynamic overwrite of partitions does the same, because a table
 * without partitions is one partition. {@link LanceStreamingWrite} distinguishes the output modes
 * of streams.
 */
class LanceOverwrite
    implements SupportsTruncate, SupportsDynamicOverwrite, SupportsStreamingUpdateAsAppend {
  private final PythonWriteBuilder python;

  LanceOverwrite(PythonWriteBuilder python) {
    this.python = python;
  }

  @Override
  public WriteBuilder truncate() {
    python.truncate();
    return this;
  }

  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    return truncate();
  }

  @Override
  public Write build() {
    return LancePythonWrite.of((PythonWrite) python.build());
  }
}
