package lancespark;

import java.util.function.Supplier;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.*;

/**
 * A write after schema evolution. If the write fails, the table loses the columns that Spark added
 * for the statement: {@link LanceTable#dropAddedColumns}.
 */
final class EvolvedWrite implements Write {
  final Write write;
  private final LanceTable table;

  EvolvedWrite(Write write, LanceTable table) {
    this.write = write;
    this.table = table;
  }

  /** Returns another write for the same statement. */
  EvolvedWrite with(Write other) {
    return new EvolvedWrite(other, table);
  }

  @Override
  public String description() {
    return write.description();
  }

  /** The text of the write in plans. */
  @Override
  public String toString() {
    return description();
  }

  @Override
  public BatchWrite toBatch() {
    return new Batch(orDrop(write::toBatch));
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return write.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return write.reportDriverMetrics();
  }

  private <T> T orDrop(Supplier<T> step) {
    try {
      return step.get();
    } catch (RuntimeException error) {
      table.dropAddedColumns();
      throw error;
    }
  }

  private final class Batch implements BatchWrite {
    private final BatchWrite batch;

    Batch(BatchWrite batch) {
      this.batch = batch;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return orDrop(() -> batch.createBatchWriterFactory(info));
    }

    @Override
    public boolean useCommitCoordinator() {
      return batch.useCommitCoordinator();
    }

    @Override
    public void onDataWriterCommit(WriterCommitMessage message) {
      batch.onDataWriterCommit(message);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      batch.commit(messages);
    }

    /** Spark calls this method after a failed commit, too. */
    @Override
    public void abort(WriterCommitMessage[] messages) {
      try {
        batch.abort(messages);
      } finally {
        table.dropAddedColumns();
      }
    }
  }
}
