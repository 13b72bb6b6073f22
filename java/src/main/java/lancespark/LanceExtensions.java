package lancespark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.unsafe.Platform;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * What `spark.sql.extensions` names. Spark calls it for each application, and the session's builders below when a session first analyzes a query,
 * those of `newSession()` and of clients of a Connect server among them.
 */
public final class LanceExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    LanceAnalysis.inject(extensions);
    return BoxedUnit.UNIT;
  }

  /** Called by the driver's program for a session of its own, which may run already: adds the rules that the session lacks. */
  public void enable(SparkSession session) {
    try {
      LancePushdown.enable(session).own = true;
    } catch (Exception error) {
      Platform.throwException(error);
    }
    LanceAnalysis.follow(session);
  }

  /** Checks options of a read or write by path, unless the session is one of the driver's program. */
  public static void checkOptions(java.util.Map<String, String> options) {
    LancePushdown rule = LancePushdown.of(SparkSession.active());
    if (rule == null || !rule.own) LanceCredentials.refuseBorrowed(options);
  }
}
