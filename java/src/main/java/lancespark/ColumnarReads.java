package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;

/**
 * Readers of a Python data source that give Spark the Arrow batches of Python as columns.
 *
 * <p>Spark's own reader copies every value into an UnsafeRow before the first operator. With
 * columns, the generated code of the query reads the Arrow memory itself.
 */
final class ColumnarReads implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;

  private final PythonPartitionReaderFactory rows;
  private final UserDefinedPythonDataSource source;
  private final byte[] function;
  private final StructType schema;
  private final Option<String> jobArtifacts;
  private final Option<String> session;

  /** Takes the factory of Spark for the same partitions. */
  @SuppressWarnings("unchecked") // the two options are of texts
  ColumnarReads(PythonPartitionReaderFactory rows) {
    this.rows = rows;
    source = (UserDefinedPythonDataSource) SparkRelease.scalaField(rows, "source");
    function = (byte[]) SparkRelease.scalaField(rows, "pickledReadFunc");
    schema = (StructType) SparkRelease.scalaField(rows, "outputSchema");
    jobArtifacts = (Option<String>) SparkRelease.scalaField(rows, "jobArtifactUUID");
    session = (Option<String>) SparkRelease.scalaField(rows, "sessionUUID");
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    return rows.createReader(partition);
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    return new Reader(((PythonInputPartition) partition).pickedPartition());
  }

  private final class Reader implements PartitionReader<ColumnarBatch> {
    private final scala.collection.immutable.Map<String, SQLMetric> metrics =
        PythonCustomMetric.pythonMetrics();
    private final Iterator<ColumnarBatch> batches;

    Reader(byte[] partition) {
      MapInBatchEvaluatorFactory function =
          source.createMapInBatchEvaluatorFactory(
              ColumnarReads.this.function,
              "read_from_data_source",
              UserDefinedPythonDataSource.readInputSchema(),
              schema,
              metrics,
              jobArtifacts,
              session);
      InternalRow input = new GenericInternalRow(new Object[] {partition});
      InternalRow struct = new GenericInternalRow(new Object[] {input});
      TaskContext task = TaskContext.get();
      batches =
          SparkRelease.arrowRunner(function)
              .compute(
                  Scala.seqOf(Scala.seqOf(struct).iterator()).iterator(), task.partitionId(), task);
    }

    @Override
    public boolean next() {
      return batches.hasNext();
    }

    @Override
    public ColumnarBatch get() {
      ColumnarBatch batch = batches.next();
      ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
      ColumnVector[] columns = new ColumnVector[schema.length()];
      for (int i = 0; i < columns.length; i++) columns[i] = struct.getChild(i);
      return new Borrowed(columns, batch.numRows());
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      Map<String, Object> values = new HashMap<>();
      Iterator<Tuple2<String, SQLMetric>> all = metrics.iterator();
      while (all.hasNext()) {
        Tuple2<String, SQLMetric> metric = all.next();
        values.put(metric._1, metric._2.value());
      }
      return source.createPythonTaskMetrics(Scala.immutableMap(values));
    }

    /** The end of the task ends the reader, as in Spark's own. */
    @Override
    public void close() {}
  }

  /** A batch of vectors that the reader of Spark uses again for the next batch, and closes. */
  private static final class Borrowed extends ColumnarBatch {
    Borrowed(ColumnVector[] columns, int rows) {
      super(columns, rows);
    }

    @Override
    public void close() {}

    @Override
    public void closeIfFreeable() {}
  }
}
