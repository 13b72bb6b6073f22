package lancespark;

import org.apache.spark.sql.connector.read.*;

/** The batch of a {@link LanceScan}, with equality by content. */
final class LanceBatch implements Batch {
  private final Batch python;
  private final String key;

  LanceBatch(Batch python, String key) {
    this.python = python;
    this.key = key;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return python.planInputPartitions();
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return python.createReaderFactory();
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
