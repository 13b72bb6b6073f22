package lancespark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The writer of a task. Its Arrow batches for Python end by row sizes ({@link BatchedRows}), and
 * hold columns of a scan as they are ({@link ArrowColumns}).
 */
final class LanceDataWriter implements DataWriter<InternalRow> {
  private static final CustomTaskMetric[] NO_METRICS = {};

  private final PythonBatchWriterFactory python;
  private final StructType schema;
  private final scala.collection.immutable.Map<String, SQLMetric> metrics =
      PythonCustomMetric.pythonMetrics();
  private final List<SQLMetric> metricList = List.copyOf(Scala.map(metrics).values());
  private long reportedSum;
  private byte[] answer;

  LanceDataWriter(PythonBatchWriterFactory python, StructType schema) {
    this.python = python;
    this.schema = schema;
  }

  @Override
  public void writeAll(Iterator<InternalRow> rows) {
    TaskContext task = TaskContext.get();
    MapInBatchEvaluatorFactory function =
        python
            .source()
            .createMapInBatchEvaluatorFactory(
                python.pickledWriteFunc(),
                "write_to_data_source",
                python.inputSchema(),
                UserDefinedPythonDataSource.writeOutputSchema(),
                metrics,
                python.jobArtifactUUID(),
                python.sessionUUID());
    BasePythonRunner<scala.collection.Iterator<InternalRow>, ColumnarBatch> runner =
        BatchedRows.withoutLimit(() -> SparkRelease.arrowRunner(function));
    ArrowFieldWriter[] fields = SparkRelease.arrowFields(runner);
    fields[0] = new ArrowColumns(fields[0], schema);
    BatchedRows batches = new BatchedRows(rows, schema, ArrowColumns.canCopy(schema));
    scala.collection.Iterator<InternalRow> input = CollectionConverters.asScala(batches);
    scala.collection.Iterator<ColumnarBatch> answers =
        runner.compute(Scala.seqOf(input).iterator(), task.partitionId(), task);
    while (answers.hasNext()) readAnswer(answers.next());
    batches.check();
  }

  private void readAnswer(ColumnarBatch batch) {
    ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
    for (int i = 0; i < batch.numRows(); i++) answer = struct.getChild(0).getBinary(i);
  }

  /** Spark calls only {@link #writeAll}. */
  @Override
  public void write(InternalRow row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public WriterCommitMessage commit() {
    Objects.requireNonNull(answer, "The Python process of the task returned no answer.");
    return new PythonWriterCommitMessage(answer);
  }

  /** The commit process deletes the files of the task. */
  @Override
  public void abort() {}

  @Override
  public void close() {}

  /** Returns the metrics that have changed. Spark asks after every hundred rows. */
  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    long sum = 0;
    for (SQLMetric metric : metricList) sum += metric.value();
    if (sum == reportedSum) return NO_METRICS;
    reportedSum = sum;
    Map<String, Object> values = new HashMap<>();
    Scala.map(metrics).forEach((name, metric) -> values.put(name, metric.value()));
    return python.source().createPythonTaskMetrics(Scala.immutableMap(values));
  }
}
