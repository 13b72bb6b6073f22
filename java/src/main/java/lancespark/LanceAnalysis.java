package lancespark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.function.Function;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function1;
import scala.collection.immutable.Seq;

/**
 * Rules for Spark's analyzer, in future sessions and in a running session, and the parser of future
 * sessions. Spark makes the analyzer and the parser of a session once.
 */
final class LanceAnalysis {
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.sql");
  private static final Set<SparkSessionExtensions> FOLLOWED =
      Collections.newSetFromMap(new WeakHashMap<>());

  private LanceAnalysis() {}

  /**
   * Adds the rules, the functions and the parser to all future sessions with these extensions.
   * Tells whether they had none.
   */
  static boolean inject(SparkSessionExtensions extensions) {
    synchronized (FOLLOWED) {
      if (!FOLLOWED.add(extensions)) return false;
    }
    extensions.injectHintResolutionRule(builder(LanceEvolution::new));
    extensions.injectHintResolutionRule(builder(LanceUnresolved::new));
    extensions.injectPostHocResolutionRule(builder(LanceAnalysis::lateRule));
    extensions.injectColumnar(Scala.function(session -> new LanceColumns.Transitions()));
    LanceFunctions.inject(extensions);
    extensions.injectParser(
        Scala.function((session, next) -> new LanceParser((SparkSession) session, next)));
    return true;
  }

  /** Tells whether a session has the rules, from the session extension or from its program. */
  static boolean serves(SparkSession session) {
    synchronized (FOLLOWED) {
      return FOLLOWED.contains(session.extensions());
    }
  }

  /** Adds the rules to a session with or without an analyzer. */
  static void follow(SparkSession session) {
    boolean isNew = inject(session.extensions());
    if (isNew && !(session.sessionState().sqlParser() instanceof LanceParser)) {
      LOG.warn(
          "this session ran before it had the Java of lance_spark, so its parser has no statements"
              + " such as OPTIMIZE and REFRESH COLUMN: call the procedures (CALL"
              + " <catalog>.system.compact, ...), or make the session with lance_spark.configure");
    }
    Analyzer analyzer = session.sessionState().analyzer();
    try {
      add(
          analyzer,
          "hintResolutionRules",
          List.of(new LanceEvolution(session), new LanceUnresolved(session)));
      add(analyzer, "postHocResolutionRules", List.of(new AddRowCounts()));
    } catch (RuntimeException error) {
      LOG.warn(
          "this release of Spark takes no rules for statements in a session that has run queries:"
              + " make the session with lance_spark.configure",
          error);
    }
  }

  /**
   * Also adds the planner rule, because extensions have no place for a rule after all rules of the
   * optimizer.
   */
  private static Rule<LogicalPlan> lateRule(SparkSession session) {
    LancePushdown.enable(session);
    return new AddRowCounts();
  }

  /** Adds rules to an analyzer without the first rule. */
  private static void add(Analyzer analyzer, String name, List<Rule<LogicalPlan>> rules) {
    @SuppressWarnings("unchecked") // the type of the field
    Seq<Rule<LogicalPlan>> field = (Seq<Rule<LogicalPlan>>) SparkRelease.call(analyzer, name);
    List<Rule<LogicalPlan>> all = new ArrayList<>(Scala.list(field));
    if (all.stream().anyMatch(rule -> rule.getClass() == rules.get(0).getClass())) return;
    all.addAll(rules);
    SparkRelease.setField(analyzer, name, Scala.seq(all));
  }

  private static Function1<org.apache.spark.sql.SparkSession, Rule<LogicalPlan>> builder(
      Function<SparkSession, Rule<LogicalPlan>> rule) {
    return Scala.function(session -> rule.apply((SparkSession) session));
  }
}
