package lancespark;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.classic.SparkSession;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.runtime.AbstractFunction1;

/** Rules for Spark's analyzer: in sessions that are made later, and in one that has its analyzer already, which Spark makes once. */
public final class LanceAnalysis {
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.sql");
  private static final Map FOLLOWED = new WeakHashMap();

  public void follow(SparkSession session) {
    synchronized (FOLLOWED) {
      if (FOLLOWED.put(session.extensions(), Boolean.TRUE) == null) {
        session.extensions().injectHintResolutionRule(new EvolutionOfSession());
        session.extensions().injectHintResolutionRule(new UnresolvedOfSession());
        session.extensions().injectPostHocResolutionRule(new CountsOfSession());
      }
      List early = new ArrayList();
      early.add(new LanceEvolution(session));
      early.add(new LanceUnresolved(session));
      List late = new ArrayList();
      late.add(new LanceCounts());
      try {
        add(session.sessionState().analyzer(), "hintResolutionRules", early);
        add(session.sessionState().analyzer(), "postHocResolutionRules", late);
      } catch (Exception error) {
        LOG.warn("this release of Spark takes no rules for statements in a session that has run queries: make the session with lance_spark.configure", error);
      }
    }
  }

  /** Adds rules to those of an analyzer that were given when it was made. */
  private static void add(Analyzer analyzer, String name, List rules) throws Exception {
    List present = Reflection.list((scala.collection.Iterable) Reflection.call(analyzer, name));
    Class first = rules.get(0).getClass();
    for (int i = 0; i < present.size(); i++) {
      if (present.get(i).getClass() == first) return;
    }
    List all = new ArrayList(present);
    all.addAll(rules);
    Field field = analyzer.getClass().getDeclaredField(name);
    field.setAccessible(true);
    field.set(analyzer, Reflection.seq(all));
  }
}

/** Called by Spark when a session first analyzes a query. */
final class EvolutionOfSession extends AbstractFunction1 {
  public Object apply(Object session) {
    return new LanceEvolution((SparkSession) session);
  }
}

/** Called by Spark when a session first analyzes a query. */
final class UnresolvedOfSession extends AbstractFunction1 {
  public Object apply(Object session) {
    return new LanceUnresolved((SparkSession) session);
  }
}

/** Called by Spark when a session first analyzes a query. */
final class CountsOfSession extends AbstractFunction1 {
  public Object apply(Object session) {
    return new LanceCounts();
  }
}
