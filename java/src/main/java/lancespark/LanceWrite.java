package lancespark;

import java.util.Iterator;
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
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * A write whose Arrow batches are not measured. After every row, Spark adds up the sizes of all vectors of the batch that it makes for Python,
 * to compare them with spark.sql.execution.arrow.maxBytesPerBatch; for seven columns that takes longer than all the rest. Where rows have a
 * fixed width, and as many of them as a batch may have stay below the limit, it cannot be reached, and this write does without.
 *
 * The setting reaches the tasks as a property of the thread that starts the job, so it is set for that moment only. It stays on the driver.
 */
final class LanceWrite implements Write {
  /** Bytes of a decimal, and one for whether it is NULL. */
  private static final long WIDEST = 17L;

  private final Write python;

  private LanceWrite(Write python) {
    this.python = python;
  }

  /** Returns a write of a query's rows, which is the given one where their batches have to be measured. */
  static Write of(Write python, StructType schema, LogicalPlan query) {
    return neverTooLarge(schema) && isPlain(query) ? new LanceWrite(python) : python;
  }

  private static boolean neverTooLarge(StructType schema) {
    SQLConf conf = SQLConf.get();
    long limit;
    try {
      limit = ((Long) Reflection.call(conf, "arrowMaxBytesPerBatch")).longValue();
    } catch (Exception error) {
      // A release of Spark that has no such limit.
      return false;
    }
    StructField[] fields = schema.fields();
    for (int i = 0; i < fields.length; i++) {
      if (!UnsafeRow.isMutable(fields[i].dataType())) return false;
    }
    long rows = conf.arrowMaxRecordsPerBatch();
    return rows > 0 && rows * WIDEST * fields.length <= limit;
  }

  /** Whether nothing else in the tasks makes batches for Python, which the setting would reach too. */
  private static boolean isPlain(LogicalPlan plan) {
    boolean known = plan instanceof Project || plan instanceof Filter || plan instanceof Sort || plan instanceof RepartitionByExpression
        || plan instanceof Repartition || plan instanceof Union || plan instanceof Join || plan instanceof Aggregate || plan instanceof Range
        || plan instanceof LocalRelation || plan instanceof LogicalRelation || plan instanceof DataSourceV2ScanRelation;
    if (!known) return false;
    Iterator expressions = Reflection.list(plan.expressions()).iterator();
    while (expressions.hasNext()) {
      if (usesPython((Expression) expressions.next())) return false;
    }
    Iterator children = Reflection.list(plan.children()).iterator();
    while (children.hasNext()) {
      if (!isPlain((LogicalPlan) children.next())) return false;
    }
    return true;
  }

  private static boolean usesPython(Expression e) {
    if (e.getClass().getSimpleName().startsWith("Python")) return true;
    Iterator children = Reflection.list(e.children()).iterator();
    while (children.hasNext()) {
      if (usesPython((Expression) children.next())) return true;
    }
    return false;
  }

  public String description() {
    return python.description();
  }

  public BatchWrite toBatch() {
    return new LanceBatchWrite(python.toBatch());
  }

  public StreamingWrite toStreaming() {
    return python.toStreaming();
  }

  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return python.reportDriverMetrics();
  }
}
