package lancespark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/**
 * A write of rows that end their Arrow batches by row sizes: {@link BatchedRows}. The source has
 * the answer to the commit.
 */
record LanceWrite(Write python, GatewaySource source, StructType schema) implements Write {
  @Override
  public String description() {
    return python.description() + ", batches end by the sizes of rows";
  }

  /** The text of the write in plans. */
  @Override
  public String toString() {
    return description();
  }

  @Override
  public BatchWrite toBatch() {
    return new LanceBatchWrite(python.toBatch(), schema);
  }

  @Override
  public StreamingWrite toStreaming() {
    return python.toStreaming();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return DriverMetrics.OF_WRITES.supported(python.supportedCustomMetrics());
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return DriverMetrics.OF_WRITES.reported(
        python.reportDriverMetrics(), source.writes().committed());
  }
}
