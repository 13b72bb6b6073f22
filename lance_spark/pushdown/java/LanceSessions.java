package lancespark;

import java.util.Map;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.unsafe.Platform;
import scala.runtime.AbstractFunction1;

/** Gives sessions the planner rule that no Python process drives: those of the clients of a Spark Connect server. */
public final class LanceSessions extends AbstractFunction1 {
  /** Called by the driver's program: in this session no user of a server says what is read. The rule keeps it, also for copies of the session. */
  public void own(SparkSession session) {
    LancePushdown rule = LancePushdown.of(session);
    if (rule != null) rule.own = true;
  }

  /** Checks options of a read or write by path, unless the session is one of the driver's program. */
  public static void checkOptions(Map options) {
    LancePushdown rule = LancePushdown.of(SparkSession.active());
    if (rule == null || !rule.own) LanceCredentials.refuseBorrowed(options);
  }

  /** Has every session that is made from this one from now on get the rule. */
  public void follow(SparkSession session) {
    session.extensions().injectPostHocResolutionRule(this);
  }

  /** Called by Spark when a session first analyzes a query; it wants a rule of that phase, too. */
  public Object apply(Object session) {
    try {
      LancePushdown.enable((SparkSession) session);
    } catch (Exception error) {
      Platform.throwException(error);
    }
    return new LanceNoRule();
  }
}

final class LanceNoRule extends Rule {
  public TreeNode apply(TreeNode plan) {
    return plan;
  }
}
