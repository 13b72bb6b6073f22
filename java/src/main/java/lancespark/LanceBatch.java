package lancespark;

import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;

/** The batch of a {@link LanceScan}, with equality by content. */
final class LanceBatch implements Batch {
  private final Batch python;
  private final String key;
  private final boolean isColumnar;

  LanceBatch(Batch python, String key, boolean isColumnar) {
    this.python = python;
    this.key = key;
    this.isColumnar = isColumnar;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return python.planInputPartitions();
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    PartitionReaderFactory rows = python.createReaderFactory();
    return isColumnar ? new ColumnarReads((PythonPartitionReaderFactory) rows) : rows;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LanceBatch batch && batch.key.equals(key);
  }

  @Override
  public int hashCode() {
    return key.hashCode();
  }
}
