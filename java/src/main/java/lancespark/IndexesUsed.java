package lancespark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Number of scalar indexes of a scan's filter. Spark's web UI makes an instance by its name. */
public final class IndexesUsed extends CustomSumMetric {
  @Override
  public String name() {
    return "lanceIndexesUsed";
  }

  @Override
  public String description() {
    return "indexes used";
  }
}
