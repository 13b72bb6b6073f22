package lancespark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/**
 * Number of rows of a write that concurrent commits moved, changed or deleted. Spark's web UI makes
 * an instance by its name.
 */
public final class ConflictingRows extends CustomSumMetric {
  @Override
  public String name() {
    return "lanceConflictingRows";
  }

  @Override
  public String description() {
    return "rows with conflicts";
  }
}
