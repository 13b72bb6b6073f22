package lancespark;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Numbers of a scan's plan, which the driver reports to Spark's web UI. */
final class ScanMetrics {
  private final Map<CustomMetric, Long> values = new LinkedHashMap<>();

  /** Takes the answer of Python to the request of a scan. */
  ScanMetrics(Json reply) {
    values.put(new FragmentsRead(), reply.number("fragments_read"));
    values.put(new FragmentsSkipped(), reply.number("fragments_skipped"));
    values.put(new IndexesUsed(), reply.number("indexes_used"));
  }

  /** Returns the metrics after those of Spark's own scan. */
  CustomMetric[] supported(CustomMetric[] python) {
    return Stream.concat(Stream.of(python), values.keySet().stream()).toArray(CustomMetric[]::new);
  }

  /** Returns the values after those of Spark's own scan. */
  CustomTaskMetric[] reported(CustomTaskMetric[] python) {
    Stream<CustomTaskMetric> own =
        values.entrySet().stream().map(entry -> new Value(entry.getKey().name(), entry.getValue()));
    return Stream.concat(Stream.of(python), own).toArray(CustomTaskMetric[]::new);
  }

  private record Value(String name, long value) implements CustomTaskMetric {}
}
