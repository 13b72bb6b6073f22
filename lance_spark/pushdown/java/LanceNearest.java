package lancespark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.FloatType;

/**
 * The first rows of a sort by how far vectors are from one: what a search finds, where the session allows it. Sort and limit stay in
 * the plan. Python decides whether an index serves (lance_spark/read/search/by_distance.py).
 */
final class LanceNearest {
  private static final String SETTING = "spark.lance.vectorSearch.enabled";
  /** Where Spark's functions of vectors end, once the optimizer has replaced them. */
  private static final String FUNCTIONS = "org.apache.spark.sql.catalyst.expressions.VectorFunctionImplUtils";
  /** Most rows of a search. */
  private static final int MAX_ROWS = 10000;

  /** What is between the limit, which is the last, and the projection and filters over the scan. */
  final List above;
  final LogicalPlan below;
  /** Column, vector, number of rows, metric, and whether rows without a distance come first: JSON for lance_spark/read/spec.py. */
  final Map wanted;

  private LanceNearest(List above, LogicalPlan below, Map wanted) {
    this.above = above;
    this.below = below;
    this.wanted = wanted;
  }

  /** Returns the search that a plan may become; null where it is something else. */
  static LanceNearest of(LogicalPlan plan, SQLConf conf) {
    if (!(plan instanceof LocalLimit) || !conf.getConfString(SETTING, "false").equalsIgnoreCase("true")) return null;
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
    LogicalPlan below = ((Sort) at).child();
    Map wanted = wanted((SortOrder) ((Sort) at).order().head(), below);
    if (wanted == null) return null;
    wanted.put("k", rows);
    return new LanceNearest(above, below, wanted);
  }

  private static Map wanted(SortOrder order, LogicalPlan below) {
    List named = new ArrayList();
    LogicalPlan at = below;
    if (at instanceof Project) {
      named = Reflection.list(((Project) at).projectList());
      at = ((Project) at).child();
    }
    List filters = new ArrayList();
    for (; at instanceof Filter; at = ((Filter) at).child()) filters.add(((Filter) at).condition());
    if (!LancePushdown.isLance(at) || !LancePushdown.deterministic(named) || !LancePushdown.deterministic(filters)) return null;
    Expression key = meant(order.child(), named);
    if (!(key instanceof StaticInvoke) || !((StaticInvoke) key).staticObject().getName().equals(FUNCTIONS)) return null;
    String metric = metric(((StaticInvoke) key).functionName(), order.direction() instanceof Ascending$);
    List arguments = Reflection.list(((StaticInvoke) key).arguments());
    Expression left = meant((Expression) arguments.get(0), named);
    Expression right = meant((Expression) arguments.get(1), named);
    Expression column = left instanceof Literal ? right : left;
    List vector = vector(left instanceof Literal ? left : right);
    if (metric == null || vector == null || !(column instanceof AttributeReference)) return null;
    Map wanted = new LinkedHashMap();
    wanted.put("column", ((AttributeReference) column).name());
    wanted.put("q", vector);
    wanted.put("metric", metric);
    wanted.put("nulls_first", Boolean.valueOf(order.nullOrdering() instanceof NullsFirst$ && !excludesNull(filters, (AttributeReference) column)));
    return wanted;
  }

  /** What a column of the projection stands for. */
  private static Expression meant(Expression e, List named) {
    for (int i = 0; e instanceof AttributeReference && i < named.size(); i++) {
      NamedExpression one = (NamedExpression) named.get(i);
      if (one instanceof Alias && one.exprId().equals(((AttributeReference) e).exprId())) return ((Alias) one).child();
    }
    return e;
  }

  /** The metric by which a function puts the nearest first, in the order in which it does. */
  private static String metric(String function, boolean ascending) {
    if (function.equals("vectorL2Distance")) return ascending ? "l2" : null;
    if (function.equals("vectorCosineSimilarity")) return ascending ? null : "cosine";
    if (function.equals("vectorInnerProduct")) return ascending ? null : "dot";
    return null;
  }

  private static List vector(Expression e) {
    boolean floats = e instanceof Literal && e.dataType() instanceof ArrayType && ((ArrayType) e.dataType()).elementType() instanceof FloatType;
    if (!floats || ((Literal) e).value() == null) return null;
    ArrayData data = (ArrayData) ((Literal) e).value();
    List numbers = new ArrayList();
    for (int i = 0; i < data.numElements(); i++) {
      if (data.isNullAt(i) || Float.isNaN(data.getFloat(i)) || Float.isInfinite(data.getFloat(i))) return null;
      numbers.add(Double.valueOf((double) data.getFloat(i)));
    }
    return numbers;
  }

  private static boolean excludesNull(List filters, AttributeReference column) {
    for (int i = 0; i < filters.size(); i++) {
      List todo = new ArrayList();
      todo.add(filters.get(i));
      while (!todo.isEmpty()) {
        Expression next = (Expression) todo.remove(todo.size() - 1);
        if (next instanceof And) {
          todo.add(((And) next).left());
          todo.add(((And) next).right());
        }
        if (!(next instanceof IsNotNull) || !(((IsNotNull) next).child() instanceof AttributeReference)) continue;
        if (((AttributeReference) ((IsNotNull) next).child()).exprId().equals(column.exprId())) return true;
      }
    }
    return false;
  }
}
