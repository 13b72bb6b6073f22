package lancespark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Number of fragments that a scan leaves out. Spark's web UI makes an instance by its name. */
public final class FragmentsSkipped extends CustomSumMetric {
  @Override
  public String name() {
    return "lanceFragmentsSkipped";
  }

  @Override
  public String description() {
    return "fragments skipped";
  }
}
