package lancespark;

import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.connector.write.*;

/** Spark makes the writers' factory right before it starts the job, and commits or aborts right after, all in one thread. */
final class LanceBatchWrite implements BatchWrite {
  private static final String LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch";
  private static final String NONE = String.valueOf(Integer.MAX_VALUE);
  private final BatchWrite python;
  private String before;

  LanceBatchWrite(BatchWrite python) {
    this.python = python;
  }

  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    DataWriterFactory factory = python.createBatchWriterFactory(info);
    SparkContext context = SparkContext.getOrCreate();
    before = context.getLocalProperty(LIMIT);
    context.setLocalProperty(LIMIT, NONE);
    return factory;
  }

  public boolean useCommitCoordinator() {
    return python.useCommitCoordinator();
  }

  public void onDataWriterCommit(WriterCommitMessage message) {
    python.onDataWriterCommit(message);
  }

  public void commit(WriterCommitMessage[] messages) {
    SparkContext.getOrCreate().setLocalProperty(LIMIT, before);
    python.commit(messages);
  }

  public void abort(WriterCommitMessage[] messages) {
    SparkContext.getOrCreate().setLocalProperty(LIMIT, before);
    python.abort(messages);
  }
}
