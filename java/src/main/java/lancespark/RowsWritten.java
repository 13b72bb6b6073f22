package lancespark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Number of rows of a write's commit. Spark's web UI makes an instance by its name. */
public final class RowsWritten extends CustomSumMetric {
  @Override
  public String name() {
    return "lanceRowsWritten";
  }

  @Override
  public String description() {
    return "rows committed";
  }
}
