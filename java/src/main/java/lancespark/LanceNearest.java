package lancespark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
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

  private LanceNearest() {}

  /** Returns column, vector, number of rows, metric, and whether rows without a distance come first; null where a sort is by something else. */
  static Map wanted(LanceSorted sorted, SQLConf conf) {
    if (!conf.getConfString(SETTING, "false").equalsIgnoreCase("true")) return null;
    Expression key = sorted.meant(sorted.order.child());
    if (!(key instanceof StaticInvoke) || !((StaticInvoke) key).staticObject().getName().equals(FUNCTIONS)) return null;
    String metric = metric(((StaticInvoke) key).functionName(), sorted.order.direction() instanceof Ascending$);
    List arguments = Reflection.list(((StaticInvoke) key).arguments());
    Expression left = sorted.meant((Expression) arguments.get(0));
    Expression right = sorted.meant((Expression) arguments.get(1));
    Expression column = left instanceof Literal ? right : left;
    List vector = vector(left instanceof Literal ? left : right);
    if (metric == null || vector == null || sorted.column(column) == null) return null;
    Map wanted = new LinkedHashMap();
    wanted.put("column", sorted.column(column));
    wanted.put("q", vector);
    wanted.put("metric", metric);
    wanted.put("nulls_first", Boolean.valueOf(sorted.nullsFirst() && !excludesNull(sorted.filters, (AttributeReference) column)));
    wanted.put("k", sorted.rows);
    return wanted;
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
