package lancespark;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.*;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * A write without measurements of its Arrow batches. After every row, Spark adds up the sizes of
 * all vectors of a batch for Python and compares the sum with
 * spark.sql.execution.arrow.maxBytesPerBatch. For seven columns, the measurement takes longer than
 * the rest of the write. Rows of a fixed width cannot reach the limit if the most rows of a batch
 * stay below the limit, and this write then lifts the limit.
 *
 * <p>The setting reaches the tasks as a property of the thread that starts the job, for the time of
 * the start. The write stays on the driver.
 */
final class LanceWrite implements Write {
  /** Bytes of a decimal and its NULL flag. */
  private static final long WIDEST = 17L;

  private final Write python;

  private LanceWrite(Write python) {
    this.python = python;
  }

  /** Wraps the write of a query's rows. Returns the write itself if batches need measurements. */
  static Write of(Write python, StructType schema, LogicalPlan query) {
    return fitsLimit(schema) && usesNoPython(query) ? new LanceWrite(python) : python;
  }

  private static boolean fitsLimit(StructType schema) {
    SQLConf conf = SQLConf.get();
    long limit;
    try {
      limit = (Long) SparkRelease.call(conf, "arrowMaxBytesPerBatch");
    } catch (IllegalStateException error) {
      // The release has no limit.
      return false;
    }
    if (!Arrays.stream(schema.fields()).allMatch(f -> UnsafeRow.isMutable(f.dataType()))) {
      return false;
    }
    long rows = conf.arrowMaxRecordsPerBatch();
    return rows > 0 && rows * WIDEST * schema.length() <= limit;
  }

  /**
   * Tells whether the tasks make no other batches for Python. The setting would reach all batches.
   */
  private static boolean usesNoPython(LogicalPlan plan) {
    boolean known =
        plan instanceof Project
            || plan instanceof Filter
            || plan instanceof Sort
            || plan instanceof RepartitionByExpression
            || plan instanceof Repartition
            || plan instanceof Union
            || plan instanceof Join
            || plan instanceof Aggregate
            || plan instanceof Range
            || plan instanceof LocalRelation
            || plan instanceof LogicalRelation
            || plan instanceof DataSourceV2ScanRelation;
    return known
        && Scala.list(plan.expressions()).stream().noneMatch(LanceWrite::usesPython)
        && Trees.children(plan).stream().allMatch(LanceWrite::usesNoPython);
  }

  private static boolean usesPython(Expression e) {
    return e.getClass().getSimpleName().startsWith("Python")
        || Trees.children(e).stream().anyMatch(LanceWrite::usesPython);
  }

  @Override
  public String description() {
    return python.description();
  }

  @Override
  public BatchWrite toBatch() {
    return new LanceBatchWrite(python.toBatch());
  }

  @Override
  public StreamingWrite toStreaming() {
    return python.toStreaming();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return python.reportDriverMetrics();
  }
}
