package lancespark;

import java.util.UUID;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWriterFactory;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.types.StructType;

/**
 * The write of a micro-batch. The gateway plans and commits: lance_spark/streaming/writes.py. Spark
 * alone would start two Python processes for each micro-batch.
 */
final class LanceStreamingWrite extends PythonStreamingWrite {
  private final GatewaySource source;
  private final StructType schema;

  LanceStreamingWrite(GatewaySource source, LogicalWriteInfo info, boolean replaces) {
    super(source, LanceSource.NAME, info, replaces);
    this.source = source;
    this.schema = info.schema();
  }

  /** Tells whether the output mode of a running query is `update`. Spark tells no builder. */
  static boolean updates(String query) {
    var running = SparkSession.active().sharedState().activeStreamingQueries();
    StreamExecution execution = running.get(UUID.fromString(query));
    if (execution == null) throw new IllegalStateException("The query " + query + " has ended.");
    return execution.outputMode().equals(OutputMode.Update());
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    return new Factory(
        (PythonStreamingWriterFactory) super.createStreamingWriterFactory(info), schema);
  }

  @Override
  public void commit(long batch, WriterCommitMessage[] messages) {
    source.writes().endBatch("commit_batch", batch, messages);
  }

  @Override
  public void abort(long batch, WriterCommitMessage[] messages) {
    source.writes().endBatch("abort_batch", batch, messages);
  }

  record Factory(PythonStreamingWriterFactory python, StructType schema)
      implements StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long batch) {
      return new LanceDataWriter(python, schema);
    }
  }
}
