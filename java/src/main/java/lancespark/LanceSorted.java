package lancespark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StringType$;

/** A limit above a sort of the rows of a scan. Both stay in the plan, whatever the scan leaves out. */
final class LanceSorted {
  /** Most rows of a limit. */
  private static final int MAX_ROWS = 10000;

  /** What is between the limit, which is the last, and the projection and filters over the scan. */
  final List above;
  final LogicalPlan below;
  final SortOrder order;
  final Integer rows;
  /** The projection, and the conditions of the filters. */
  private final List named;
  final List filters;
  private final List scanned;

  private LanceSorted(List above, SortOrder order, Integer rows, LogicalPlan below, List named, List filters, List scanned) {
    this.above = above;
    this.order = order;
    this.rows = rows;
    this.below = below;
    this.named = named;
    this.filters = filters;
    this.scanned = scanned;
  }

  /** Returns the limit and the sort that a plan is; null where it is something else. */
  static LanceSorted of(LogicalPlan plan) {
    if (!(plan instanceof LocalLimit)) return null;
    Integer rows = LancePushdown.rows(((LocalLimit) plan).limitExpr());
    if (rows == null || rows.intValue() < 1 || rows.intValue() > MAX_ROWS) return null;
    List above = new ArrayList();
    above.add(plan);
    LogicalPlan at = ((LocalLimit) plan).child();
    while (at instanceof Project && LancePushdown.deterministic(Reflection.list(at.expressions()))) {
      above.add(0, at);
      at = ((Project) at).child();
    }
    if (!(at instanceof Sort) || !((Sort) at).global() || !LancePushdown.deterministic(Reflection.list(at.expressions()))) return null;
    above.add(0, at);
    SortOrder order = (SortOrder) ((Sort) at).order().head();
    LogicalPlan below = ((Sort) at).child();
    List named = new ArrayList();
    at = below;
    if (at instanceof Project) {
      named = Reflection.list(((Project) at).projectList());
      at = ((Project) at).child();
    }
    List filters = new ArrayList();
    for (; at instanceof Filter; at = ((Filter) at).child()) filters.add(((Filter) at).condition());
    if (!LancePushdown.isLance(at) || !LancePushdown.deterministic(named) || !LancePushdown.deterministic(filters)) return null;
    return new LanceSorted(above, order, rows, below, named, filters, Reflection.list(at.output()));
  }

  /** What a column of the projection stands for. */
  Expression meant(Expression e) {
    for (int i = 0; e instanceof AttributeReference && i < named.size(); i++) {
      NamedExpression one = (NamedExpression) named.get(i);
      if (one instanceof Alias && one.exprId().equals(((AttributeReference) e).exprId())) return ((Alias) one).child();
    }
    return e;
  }

  /** The name of a column of the scan, which a query may write in another case; null where an expression is something else. */
  String column(Expression e) {
    for (int i = 0; e instanceof AttributeReference && i < scanned.size(); i++) {
      Attribute one = (Attribute) scanned.get(i);
      if (one.exprId().equals(((AttributeReference) e).exprId())) return one.name();
    }
    return null;
  }

  /** Whether a row without the first key comes before the others. */
  boolean nullsFirst() {
    return order.nullOrdering() instanceof NullsFirst$;
  }

  /** The first rows by a column that is the first key: JSON for lance_spark/read/spec.py; null where the key is something else. */
  Map top() {
    Expression key = meant(order.child());
    if (column(key) == null) return null;
    // Of other collations, order and equality are not those of bytes.
    if (key.dataType() instanceof StringType && !key.dataType().equals(StringType$.MODULE$)) return null;
    Map top = new LinkedHashMap();
    top.put("column", column(key));
    top.put("n", rows);
    top.put("ascending", Boolean.valueOf(order.direction() instanceof Ascending$));
    top.put("nulls_first", Boolean.valueOf(nullsFirst()));
    return top;
  }
}
