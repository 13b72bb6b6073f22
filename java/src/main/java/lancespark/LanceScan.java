package lancespark;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A scan that this rule planned: Spark's own Python scan, with a description for explain, statistics, and equality by content, so that
 * Spark can reuse the exchange above two equal scans. It stays on the driver; only what PythonScan itself makes goes to executors.
 */
public final class LanceScan implements Scan, SupportsReportStatistics, SupportsMetadata {
  private final Scan python;
  private final String key;
  private final String description;
  private final long bytes;

  /** Rows that it gives at most; negative where that is not known. */
  final long rows;
  /** Whether its partitions end at the limit above it, and no filter between them drops a row. */
  final boolean limited;
  /** What the rule needs when it meets this scan again, below a write. */
  final Map spec;
  final Map options;
  final String path;
  final boolean splits;
  /** Names of the columns that this scan gives in two. */
  final List dense;
  /** Names of the decimals that this scan gives as integers. */
  final List unscaled;
  /** Numbers of elements of the vectors that this scan shortens, by the name of the column. */
  final Map elements;
  /** Values of its aggregates, where nothing has to be read for them; else null. */
  final List answer;

  LanceScan(Scan python, String key, Map spec, Map options, String path, String description, long rows, long bytes, boolean limited, boolean splits, List dense, List unscaled, Map elements, List answer) {
    this.python = python;
    this.key = key;
    this.spec = spec;
    this.options = options;
    this.path = path;
    this.description = description;
    this.rows = rows;
    this.bytes = bytes;
    this.limited = limited;
    this.splits = splits;
    this.dense = dense;
    this.unscaled = unscaled;
    this.elements = elements;
    this.answer = answer;
  }

  public StructType readSchema() {
    return python.readSchema();
  }

  public String description() {
    return description;
  }

  public Batch toBatch() {
    return new LanceBatch(python.toBatch(), key);
  }

  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }

  public CustomTaskMetric[] reportDriverMetrics() {
    return python.reportDriverMetrics();
  }

  public Scan.ColumnarSupportMode columnarSupportMode() {
    return python.columnarSupportMode();
  }

  public scala.collection.immutable.Map getMetaData() {
    Map metadata = new HashMap();
    metadata.put("Lance", description);
    return scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(metadata));
  }

  public Statistics estimateStatistics() {
    return new LanceStatistics(rows, bytes);
  }

  public boolean equals(Object other) {
    return other instanceof LanceScan && ((LanceScan) other).key.equals(key);
  }

  public int hashCode() {
    return key.hashCode();
  }

  public String toString() {
    return description;
  }
}
