package lancespark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.types.StructType;

/** The batch write of {@link LanceWrite}. Its writers run in tasks. */
record LanceBatchWrite(BatchWrite python, StructType schema) implements BatchWrite {
  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return new Factory((PythonBatchWriterFactory) python.createBatchWriterFactory(info), schema);
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

  record Factory(PythonBatchWriterFactory python, StructType schema) implements DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      return new LanceDataWriter(python, schema);
    }
  }
}
