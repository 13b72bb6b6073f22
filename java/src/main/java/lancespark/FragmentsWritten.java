package lancespark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Number of fragments of a write's commit. Spark's web UI makes an instance by its name. */
public final class FragmentsWritten extends CustomSumMetric {
  @Override
  public String name() {
    return "lanceFragmentsWritten";
  }

  @Override
  public String description() {
    return "fragments written";
  }
}
