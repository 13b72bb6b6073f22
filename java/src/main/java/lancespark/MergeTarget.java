package lancespark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.MonotonicallyIncreasingID;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Repartition;

/**
 * Filters the target of a MERGE with constant keys below the ids of its rows. Spark numbers the
 * rows of the target, and filters the numbered rows. Without this class, the scan therefore reads
 * all rows and uses no index, and a join without keys computes the target twice.
 */
final class MergeTarget {
  private MergeTarget() {}

  /** Returns a plan with filtered targets. The ids of rows stay distinct. */
  static LogicalPlan filtered(LogicalPlan plan) {
    return plan.transformDownWithSubqueries(
        Trees.rule(
            node -> node instanceof Join join && filteredTarget(join) != null,
            node -> filteredJoin((Join) node)));
  }

  private static LogicalPlan filteredJoin(Join join) {
    Project target = filteredTarget(join);
    boolean isTwice = join.joinType() == RightOuter$.MODULE$ && join.condition().isEmpty();
    LogicalPlan left = isTwice ? new Repartition(1, true, target) : target;
    return join.withNewChildren(Scala.seqOf(left, join.right()));
  }

  /** Returns the target with its filter below the ids, or null without such a filter. */
  private static Project filteredTarget(Join join) {
    if (!(join.left() instanceof Filter filter)) return null;
    if (!(filter.child() instanceof Project project)) return null;
    List<Attribute> passed = new ArrayList<>();
    boolean hasIds = false;
    for (NamedExpression column : Scala.<NamedExpression>list(project.projectList())) {
      if (column instanceof Attribute attribute) passed.add(attribute);
      hasIds |= column instanceof Alias alias && alias.child() instanceof MonotonicallyIncreasingID;
    }
    boolean isPassed =
        Scala.<Attribute>list(filter.condition().references().toSeq()).stream()
            .allMatch(used -> passed.stream().anyMatch(column -> Trees.isSame(column, used)));
    if (!hasIds || !isPassed || !filter.condition().deterministic()) return null;
    return new Project(project.projectList(), new Filter(filter.condition(), project.child()));
  }
}
