package lancespark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Number of fragments that a scan reads. Spark's web UI makes an instance by its name. */
public final class FragmentsRead extends CustomSumMetric {
  @Override
  public String name() {
    return "lanceFragmentsRead";
  }

  @Override
  public String description() {
    return "fragments read";
  }
}
