package lancespark;

import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * The value of `spark.sql.extensions`. Spark calls the class for each application. The builders of
 * the rules run when a session first analyzes a query, including sessions of `newSession()` and of
 * clients of a Connect server.
 */
public final class LanceExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    LanceAnalysis.inject(extensions);
    LanceWebUi.attach(SparkContext.getOrCreate());
    PythonGateway.startAhead();
    return BoxedUnit.UNIT;
  }

  /** Adds the missing rules to a running session. Called by the program of the driver. */
  public void enable(SparkSession session) {
    LancePushdown.enable(session).own = true;
    LanceAnalysis.follow(session);
    LanceWebUi.attach(session.sparkContext());
  }

  /**
   * Checks options of a read or write by path. A session of the driver's program may name any
   * store.
   */
  public static void checkOptions(Map<String, String> options) {
    LanceSource.refuseInternal(new CaseInsensitiveStringMap(options));
    LancePushdown rule = LancePushdown.of(SparkSession.active());
    if (rule == null || !rule.own) LanceCredentials.refuseBorrowed(options);
  }
}
