package lancespark;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Numbers of UPDATE, DELETE or MERGE, for the SQL tab of the web UI. */
final class ChangeMetrics {
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.sql");
  private static final String[] CHANGES = {"inserted", "updated", "deleted"};

  private final SparkContext context = SparkContext.getOrCreate();
  private final Map<String, SQLMetric> metrics = new LinkedHashMap<>();

  ChangeMetrics() {
    for (String change : CHANGES) {
      metrics.put("rows_" + change, SQLMetrics.createMetric(context, "rows " + change));
    }
    metrics.put("attempts", SQLMetrics.createMetric(context, "commit attempts"));
  }

  /** Returns the metrics by the fields of Python's answer. */
  scala.collection.immutable.Map<String, SQLMetric> byField() {
    return Scala.immutableMap(metrics);
  }

  /** Reports the numbers of an answer to the web UI. Its errors fail no committed statement. */
  void report(Json answer) {
    try {
      metrics.forEach((field, metric) -> metric.set(answer.number(field)));
      String execution = context.getLocalProperty("spark.sql.execution.id");
      SQLMetrics.postDriverMetricUpdates(context, execution, Scala.seq(metrics.values()));
    } catch (RuntimeException error) {
      LOG.warn("The SQL tab does not show the numbers of a statement.", error);
    }
  }
}
