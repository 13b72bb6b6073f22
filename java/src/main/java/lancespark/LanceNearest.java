package lancespark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.FloatType;

/**
 * Recognizes a sort by the distance from a vector as a vector search, if the session allows it.
 * Sort and limit stay in the plan. Python decides whether an index serves:
 * lance_spark/read/ranking/sort_pushdown.py.
 */
final class LanceNearest {
  private static final String SETTING = "spark.lance.vectorSearch.enabled";

  /** Class of the vector functions after the optimizer has replaced them. */
  private static final String FUNCTIONS =
      "org.apache.spark.sql.catalyst.expressions.VectorFunctionImplUtils";

  private LanceNearest() {}

  /** Requests the nearest rows as JSON. Returns null for any other sort. */
  static Json request(LanceSorted sorted, SQLConf conf) {
    if (!conf.getConfString(SETTING, "false").equalsIgnoreCase("true")) return null;
    if (!(sorted.resolve(sorted.order().child()) instanceof StaticInvoke call)) return null;
    if (!call.staticObject().getName().equals(FUNCTIONS)) return null;
    boolean ascending = sorted.order().direction() instanceof Ascending$;
    String metric = metric(call.functionName(), ascending);
    List<Expression> arguments = Scala.list(call.arguments());
    Expression left = sorted.resolve(arguments.get(0));
    Expression right = sorted.resolve(arguments.get(1));
    Expression column = left instanceof Literal ? right : left;
    List<Double> vector = vector(left instanceof Literal ? left : right);
    String name = sorted.column(column);
    if (metric == null || vector == null || name == null) return null;
    boolean nullsFirst = sorted.nullsFirst() && !excludesNull(sorted.filters(), column);
    return new Json()
        .with("column", name)
        .with("q", vector)
        .with("metric", metric)
        .with("nulls_first", nullsFirst)
        .with("k", sorted.rows());
  }

  /** Returns the metric whose nearest rows come first in the direction of the sort, or null. */
  private static String metric(String function, boolean ascending) {
    return switch (function) {
      case "vectorL2Distance" -> ascending ? "l2" : null;
      case "vectorCosineSimilarity" -> ascending ? null : "cosine";
      case "vectorInnerProduct" -> ascending ? null : "dot";
      default -> null;
    };
  }

  private static List<Double> vector(Expression e) {
    boolean floats =
        e.dataType() instanceof ArrayType array && array.elementType() instanceof FloatType;
    if (!floats || !(e instanceof Literal literal) || literal.value() == null) return null;
    ArrayData data = (ArrayData) literal.value();
    List<Double> numbers = new ArrayList<>();
    for (int i = 0; i < data.numElements(); i++) {
      if (data.isNullAt(i) || !Float.isFinite(data.getFloat(i))) return null;
      numbers.add((double) data.getFloat(i));
    }
    return numbers;
  }

  private static boolean excludesNull(List<Expression> filters, Expression column) {
    AttributeReference attribute = (AttributeReference) column;
    return filters.stream()
        .flatMap(filter -> Trees.conjuncts(filter).stream())
        .anyMatch(
            conjunct ->
                conjunct instanceof IsNotNull isNotNull
                    && isNotNull.child() instanceof AttributeReference tested
                    && Trees.isSame(tested, attribute));
  }
}
