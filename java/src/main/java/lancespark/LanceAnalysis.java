package lancespark;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.unsafe.Platform;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;

/** Rules for Spark's analyzer: in sessions that are made later, and in one that has its analyzer already, which Spark makes once. */
final class LanceAnalysis {
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.sql");
  private static final Set<SparkSessionExtensions> FOLLOWED = Collections.newSetFromMap(new WeakHashMap<>());

  private LanceAnalysis() {}

  /** Gives all sessions with these extensions that have no analyzer yet the rules. */
  static void inject(SparkSessionExtensions extensions) {
    synchronized (FOLLOWED) {
      if (!FOLLOWED.add(extensions)) return;
    }
    extensions.injectHintResolutionRule(builder(LanceEvolution::new));
    extensions.injectHintResolutionRule(builder(LanceUnresolved::new));
    extensions.injectPostHocResolutionRule(builder(LanceAnalysis::lateRule));
  }

  /** Gives a session the rules, whether it has an analyzer or not. */
  static void follow(SparkSession session) {
    inject(session.extensions());
    Analyzer analyzer = session.sessionState().analyzer();
    try {
      add(analyzer, "hintResolutionRules", List.of(new LanceEvolution(session), new LanceUnresolved(session)));
      add(analyzer, "postHocResolutionRules", List.of(new AddRowCounts()));
    } catch (Exception error) {
      LOG.warn("this release of Spark takes no rules for statements in a session that has run queries: make the session with lance_spark.configure", error);
    }
  }

  /** The planner rule goes along: an extension has no place for a rule that comes after all rules of the optimizer. */
  private static Rule<LogicalPlan> lateRule(SparkSession session) {
    try {
      LancePushdown.enable(session);
    } catch (Exception error) {
      Platform.throwException(error);
    }
    return new AddRowCounts();
  }

  /** Adds rules to those of an analyzer that were given when it was made. */
  private static void add(Analyzer analyzer, String name, List<Rule<LogicalPlan>> rules) throws Exception {
    @SuppressWarnings("unchecked") // the field's own type
    List<Rule<LogicalPlan>> present = Reflection.list((Seq<Rule<LogicalPlan>>) Reflection.call(analyzer, name));
    Class<?> first = rules.get(0).getClass();
    for (Rule<LogicalPlan> rule : present) {
      if (rule.getClass() == first) return;
    }
    List<Rule<LogicalPlan>> all = new ArrayList<>(present);
    all.addAll(rules);
    Field field = analyzer.getClass().getDeclaredField(name);
    field.setAccessible(true);
    field.set(analyzer, Reflection.seq(all));
  }

  private interface RuleOfSession {
    Rule<LogicalPlan> make(SparkSession session);
  }

  private static Function1<org.apache.spark.sql.SparkSession, Rule<LogicalPlan>> builder(RuleOfSession rule) {
    return new AbstractFunction1<>() {
      @Override
      public Rule<LogicalPlan> apply(org.apache.spark.sql.SparkSession session) {
        return rule.make((SparkSession) session);
      }
    };
  }
}
