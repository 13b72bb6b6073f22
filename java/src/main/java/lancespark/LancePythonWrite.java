package lancespark;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;

/** Spark's write of a Python data source. The gateway plans and commits the batches of streams. */
final class LancePythonWrite extends PythonWrite {
  private final LogicalWriteInfo info;
  private final boolean replaces;

  private LancePythonWrite(PythonDataSourceV2 source, LogicalWriteInfo info, boolean replaces) {
    super(source, LanceSource.NAME, info, replaces);
    this.info = info;
    this.replaces = replaces;
  }

  static LancePythonWrite of(PythonWrite write) {
    return new LancePythonWrite(
        (PythonDataSourceV2) SparkRelease.field(write, "ds"),
        (LogicalWriteInfo) SparkRelease.field(write, "info"),
        (Boolean) SparkRelease.field(write, "isTruncate"));
  }

  @Override
  public StreamingWrite toStreaming() {
    boolean updates = LanceStreamingWrite.updates(info.queryId());
    return new LanceStreamingWrite(
        GatewaySource.streaming(info.queryId(), updates), info, replaces);
  }
}
