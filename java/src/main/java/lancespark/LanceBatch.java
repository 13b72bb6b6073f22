package lancespark;

import org.apache.spark.sql.connector.read.*;

final class LanceBatch implements Batch {
  private final Batch python;
  private final String key;

  LanceBatch(Batch python, String key) {
    this.python = python;
    this.key = key;
  }

  public InputPartition[] planInputPartitions() {
    return python.planInputPartitions();
  }

  public PartitionReaderFactory createReaderFactory() {
    return python.createReaderFactory();
  }

  public boolean equals(Object other) {
    return other instanceof LanceBatch && ((LanceBatch) other).key.equals(key);
  }

  public int hashCode() {
    return key.hashCode();
  }
}
