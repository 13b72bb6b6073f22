package lancespark;

import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.classic.SparkSession;
import scala.runtime.AbstractFunction1;

/** Rules for Spark's analyzer, in the sessions that have not analyzed a query yet: Spark makes the analyzer of a session once. */
public final class LanceAnalysis {
  private static final Map FOLLOWED = new WeakHashMap();

  public void follow(SparkSession session) {
    synchronized (FOLLOWED) {
      if (FOLLOWED.put(session.extensions(), Boolean.TRUE) != null) return;
      session.extensions().injectHintResolutionRule(new EvolutionOfSession());
      session.extensions().injectPostHocResolutionRule(new CountsOfSession());
    }
  }
}

/** Called by Spark when a session first analyzes a query. */
final class EvolutionOfSession extends AbstractFunction1 {
  public Object apply(Object session) {
    return new LanceEvolution((SparkSession) session);
  }
}

/** Called by Spark when a session first analyzes a query. */
final class CountsOfSession extends AbstractFunction1 {
  public Object apply(Object session) {
    return new LanceCounts();
  }
}
