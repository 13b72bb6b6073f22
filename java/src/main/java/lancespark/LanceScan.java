package lancespark;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.*;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.types.StructType;

/**
 * A scan of the planner rule: Spark's own Python scan with a description for EXPLAIN, statistics,
 * and equality by content, so that Spark reuses the exchange above two equal scans. The scan stays
 * on the driver. Executors receive only the objects of PythonScan.
 */
public final class LanceScan
    implements Scan, SupportsReportStatistics, SupportsRuntimeV2Filtering, SupportsMetadata {
  /**
   * The condition of the next batch of a thread. Spark asks for the batch at once, and may use the
   * scan in another plan without the condition.
   */
  private static final ThreadLocal<Narrowing> NARROWING = new ThreadLocal<>();

  private final Scan python;
  private final String key;
  private final String description;
  private final Json reply;

  /** Estimated bytes of the scan. */
  final long bytes;

  /** Most rows of the scan; negative if unknown. */
  final long rows;

  /** Partitions end at the limit above the scan, and no filter between them drops a row. */
  final boolean limited;

  /** JSON of the table and its version. */
  final String pin;

  /** The request to Python, for a changed scan below a write. */
  final Json spec;

  final Map<String, String> options;
  final String path;

  /** Tells whether partitions split fragments. */
  final boolean splits;

  /** Names of the columns in two halves. */
  final Set<String> dense;

  /** Names of the decimals in the form of integers. */
  final Set<String> unscaled;

  /** Numbers of elements of whole vectors, by the name of a column shortened by the scan. */
  final Map<String, Integer> elements = new HashMap<>();

  /** Columns below conditions known only while the query runs. */
  NamedReference[] keys = {};

  /**
   * Whether a Python function reads the scan. Such a function keeps a batch of columns while it
   * asks for the next, which overwrites the batch.
   */
  boolean isBelowPython;

  /** Values of the aggregates, if they need no read; else null. */
  final List<Object> answer;

  /** A condition for the next batch of a scan, or null. */
  private record Narrowing(LanceScan scan, Json predicate) {}

  /** Takes Spark's scan and the answer of Python to the request. */
  LanceScan(
      Scan python,
      String key,
      String pin,
      Json spec,
      Map<String, String> options,
      String path,
      Json reply) {
    this.python = python;
    this.key = key;
    this.pin = pin;
    this.spec = spec;
    this.options = options;
    this.path = path;
    this.description = String.valueOf(reply.get("description"));
    this.reply = reply;
    this.rows = reply.number("rows");
    this.bytes = reply.number("bytes");
    this.limited = reply.isTrue("limited");
    this.splits = reply.isTrue("splits");
    this.dense = Set.copyOf(reply.texts("dense"));
    this.unscaled = Set.copyOf(reply.texts("unscaled"));
    if (reply.get("elements") != null) {
      reply.object("elements").forEach((name, size) -> elements.put(name, (Integer) size));
    }
    this.answer = reply.get("answer") == null ? null : reply.items("answer");
  }

  @Override
  public StructType readSchema() {
    return python.readSchema();
  }

  @Override
  public String description() {
    return description;
  }

  @Override
  public NamedReference[] filterAttributes() {
    return keys.clone();
  }

  /** Takes the present conditions of Spark, for the next call of {@link #toBatch}. */
  @Override
  public void filter(Predicate[] predicates) {
    NARROWING.set(new Narrowing(this, RuntimeFilter.describe(predicates)));
  }

  @Override
  public Batch toBatch() {
    Narrowing narrowing = NARROWING.get();
    // Also if this call fails: a later query may plan an equal scan in this thread.
    NARROWING.remove();
    LanceBatch batch = new LanceBatch(python.toBatch(), key, isColumnar());
    if (narrowing == null || !narrowing.scan.equals(this)) return batch;
    Json predicate = narrowing.predicate;
    if (predicate == null) return batch;
    int partitions = batch.planInputPartitions().length;
    Json request = new Json().with("predicate", predicate).with("partitions", partitions);
    LanceScan narrowed = LanceSource.again(this, "runtime", request);
    return new LanceBatch(narrowed.python.toBatch(), narrowed.key, isColumnar());
  }

  /**
   * Tells whether Spark gets columns. A vector in two halves is rows: Spark copies a half without
   * NULL elements as a whole, and the expression above the scan would hide that there are none.
   */
  private boolean isColumnar() {
    return dense.isEmpty() && !isBelowPython;
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return DriverMetrics.OF_SCANS.supported(python.supportedCustomMetrics());
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return DriverMetrics.OF_SCANS.reported(python.reportDriverMetrics(), reply);
  }

  @Override
  public Scan.ColumnarSupportMode columnarSupportMode() {
    return isColumnar() ? ColumnarSupportMode.SUPPORTED : ColumnarSupportMode.UNSUPPORTED;
  }

  @Override
  public scala.collection.immutable.Map<String, String> getMetaData() {
    return Scala.immutableMap(Map.of("Lance", description));
  }

  @Override
  public Statistics estimateStatistics() {
    return LanceStatistics.of(rows, bytes);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LanceScan scan && scan.key.equals(key);
  }

  @Override
  public int hashCode() {
    return key.hashCode();
  }

  @Override
  public String toString() {
    return description;
  }
}
