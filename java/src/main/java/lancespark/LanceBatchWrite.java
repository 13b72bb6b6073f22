package lancespark;

import java.io.IOException;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.types.StructType;

/** The batch write of {@link LanceWrite}. Its writers run in tasks. */
record LanceBatchWrite(BatchWrite python, StructType schema) implements BatchWrite {
  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return new Factory(python.createBatchWriterFactory(info), schema);
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
    python.commit(messages);
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    python.abort(messages);
  }

  record Factory(DataWriterFactory python, StructType schema) implements DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      return new Writer(python.createWriter(partition, task), schema);
    }
  }

  record Writer(DataWriter<InternalRow> python, StructType schema)
      implements DataWriter<InternalRow> {
    @Override
    public void writeAll(Iterator<InternalRow> rows) {
      new BatchedRows(rows, schema).send(python::writeAll);
    }

    @Override
    public void write(InternalRow row) throws IOException {
      python.write(row);
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      return python.commit();
    }

    @Override
    public void abort() throws IOException {
      python.abort();
    }

    @Override
    public void close() throws IOException {
      python.close();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return python.currentMetricsValues();
    }
  }
}
