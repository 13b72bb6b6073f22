package lancespark;

import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.write.*;

/**
 * The batch write of {@link LanceWrite}. Spark makes the factory of the writers right before the
 * job, and commits or aborts right after it, in the same thread.
 */
final class LanceBatchWrite implements BatchWrite {
  private static final String LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch";
  private static final String NONE = String.valueOf(Integer.MAX_VALUE);
  private final BatchWrite python;
  private String before;

  LanceBatchWrite(BatchWrite python) {
    this.python = python;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    DataWriterFactory factory = python.createBatchWriterFactory(info);
    SparkContext context = SparkContext.getOrCreate();
    before = context.getLocalProperty(LIMIT);
    context.setLocalProperty(LIMIT, NONE);
    return factory;
  }

  @Override
  public boolean useCommitCoordinator() {
    return python.useCommitCoordinator();
  }

  @Override
  public void onDataWriterCommit(WriterCommitMessage message) {
    python.onDataWriterCommit(message);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    SparkContext.getOrCreate().setLocalProperty(LIMIT, before);
    python.commit(messages);
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    SparkContext.getOrCreate().setLocalProperty(LIMIT, before);
    python.abort(messages);
  }
}
