package lancespark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Number of attempts of a write's commit. Spark's web UI makes an instance by its name. */
public final class CommitAttempts extends CustomSumMetric {
  @Override
  public String name() {
    return "lanceCommitAttempts";
  }

  @Override
  public String description() {
    return "commit attempts";
  }
}
