package lancespark;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Numbers of a scan's plan or of a write's commit. The driver reports them to the web UI. */
final class DriverMetrics {
  /** The fields of Python's answer to the request of a scan. */
  static final DriverMetrics OF_SCANS =
      new DriverMetrics(
          "fragments_read", new FragmentsRead(),
          "fragments_skipped", new FragmentsSkipped(),
          "indexes_used", new IndexesUsed());

  /** The fields of Python's answer to the commit of a write. */
  static final DriverMetrics OF_WRITES =
      new DriverMetrics(
          "rows", new RowsWritten(),
          "fragments", new FragmentsWritten(),
          "attempts", new CommitAttempts(),
          "conflicting_rows", new ConflictingRows());

  private final Map<String, CustomMetric> metrics = new LinkedHashMap<>();

  private DriverMetrics(Object... fields) {
    for (int i = 0; i < fields.length; i += 2) {
      metrics.put((String) fields[i], (CustomMetric) fields[i + 1]);
    }
  }

  /** Appends the metrics to the metrics of Spark's own scan or write. */
  CustomMetric[] supported(CustomMetric[] python) {
    return Stream.concat(Stream.of(python), metrics.values().stream()).toArray(CustomMetric[]::new);
  }

  /** Appends the values of an answer to the values of Spark's own scan or write. */
  CustomTaskMetric[] reported(CustomTaskMetric[] python, Json answer) {
    List<CustomTaskMetric> own =
        metrics.entrySet().stream()
            .filter(entry -> answer.number(entry.getKey()) >= 0)
            .<CustomTaskMetric>map(
                entry -> new Value(entry.getValue().name(), answer.number(entry.getKey())))
            .toList();
    return Stream.concat(Stream.of(python), own.stream()).toArray(CustomTaskMetric[]::new);
  }

  private record Value(String name, long value) implements CustomTaskMetric {}
}
