package lancespark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StringType$;

/**
 * A limit above a sort of the rows of a scan. Both stay in the plan, even if the scan drops rows.
 *
 * @param above the nodes from the sort up to the limit
 * @param order the first sort key
 * @param rows the rows of the limit
 * @param below the plan below the sort: an optional projection and filters over the scan
 * @param projections the expressions of the projection, or an empty list
 * @param filters the conditions of the filters
 * @param scanned the columns of the scan
 */
record LanceSorted(
    List<LogicalPlan> above,
    SortOrder order,
    int rows,
    LogicalPlan below,
    List<NamedExpression> projections,
    List<Expression> filters,
    List<Attribute> scanned) {
  /** Most rows of a limit. */
  private static final int MAX_ROWS = 10000;

  /** Recognizes a limit above a sort. Returns null for other plans. */
  static LanceSorted of(LogicalPlan plan) {
    if (!(plan instanceof LocalLimit limit)) return null;
    Integer rows = LancePushdown.rowsOf(limit.limitExpr());
    if (rows == null || rows < 1 || rows > MAX_ROWS) return null;
    ArrayDeque<LogicalPlan> above = new ArrayDeque<>(List.of(plan));
    LogicalPlan at = limit.child();
    while (at instanceof Project project && isDeterministic(at)) {
      above.addFirst(at);
      at = project.child();
    }
    if (!(at instanceof Sort sort) || !sort.global() || !isDeterministic(at)) return null;
    above.addFirst(at);
    SortOrder order = sort.order().head();
    LogicalPlan below = sort.child();
    List<NamedExpression> projections = List.of();
    at = below;
    if (at instanceof Project project) {
      projections = Scala.list(project.projectList());
      at = project.child();
    }
    List<Expression> filters = new ArrayList<>();
    for (; at instanceof Filter filter; at = filter.child()) filters.add(filter.condition());
    boolean deterministic =
        projections.stream().allMatch(e -> ((Expression) e).deterministic())
            && Trees.areDeterministic(filters);
    if (!LancePushdown.isLance(at) || !deterministic) return null;
    List<Attribute> scanned = Scala.list(at.output());
    return new LanceSorted(List.copyOf(above), order, rows, below, projections, filters, scanned);
  }

  private static boolean isDeterministic(LogicalPlan plan) {
    return Trees.areDeterministic(Scala.list(plan.expressions()));
  }

  /** Returns the expression behind a column of the projection; other expressions unchanged. */
  Expression resolve(Expression e) {
    if (!(e instanceof AttributeReference reference)) return e;
    return projections.stream()
        .filter(
            projection ->
                projection instanceof Alias && projection.exprId().equals(reference.exprId()))
        .findFirst()
        .map(projection -> ((Alias) projection).child())
        .orElse(e);
  }

  /** Returns the name of a column in the case of the scan, or null for other expressions. */
  String column(Expression e) {
    if (!(e instanceof AttributeReference reference)) return null;
    return scanned.stream()
        .filter(column -> Trees.isSame(column, reference))
        .findFirst()
        .map(Attribute::name)
        .orElse(null);
  }

  /** Tells whether rows with a NULL key come first. */
  boolean nullsFirst() {
    return order.nullOrdering() instanceof NullsFirst$;
  }

  /**
   * Requests the first rows by a column, as JSON for lance_spark/read/planning/pushdown_request.py.
   * Returns null for any other key.
   */
  Json top() {
    Expression key = resolve(order.child());
    String column = column(key);
    if (column == null) return null;
    // Other collations do not compare bytes.
    if (key.dataType() instanceof StringType && !key.dataType().equals(StringType$.MODULE$)) {
      return null;
    }
    return new Json()
        .with("column", column)
        .with("n", rows)
        .with("ascending", order.direction() instanceof Ascending$)
        .with("nulls_first", nullsFirst());
  }
}
