package lancespark;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.IntegerType$;

/**
 * Reads only the leading elements of vectors if a query uses no others: `v[0]`, `element_at(v, 1)`,
 * `size(v)`, `v IS NULL`.
 *
 * <p>The scan returns a shorter array under the same name, so most expressions stay unchanged. Only
 * `size` becomes the number of elements in the type of the table. The scan decides whether a column
 * is a vector of sufficient length.
 */
final class Elements {
  private static final int WHOLE = -1;

  /** Number of used leading elements by the id of the column; WHOLE for any other use. */
  private final Map<ExprId, Integer> used = new HashMap<>();

  /** Number of elements of a whole vector, by the id of a shortened column. */
  private final Map<ExprId, Integer> sizes = new HashMap<>();

  /** Collects the elements in expressions above the scan. */
  void use(List<? extends Expression> expressions) {
    expressions.forEach(this::use);
  }

  private void use(Expression e) {
    int elements = leadingElements(e);
    Expression column = elements == WHOLE ? e : Trees.children(e).get(0);
    if (column instanceof AttributeReference attribute) {
      used.merge(
          attribute.exprId(),
          elements,
          (a, b) -> a == WHOLE || b == WHOLE ? WHOLE : Math.max(a, b));
    } else {
      use(Trees.children(e));
    }
  }

  /** Returns the number of leading elements of the first child for an expression. */
  private static int leadingElements(Expression e) {
    if (e instanceof Size || e instanceof IsNull || e instanceof IsNotNull) return 1;
    if (e instanceof GetArrayItem item) return position(item.ordinal(), 1);
    return e instanceof ElementAt element && element.left().dataType() instanceof ArrayType
        ? position(element.right(), 0)
        : WHOLE;
  }

  private static int position(Expression ordinal, int offset) {
    Object number = ordinal instanceof Literal literal ? literal.value() : null;
    int elements = number instanceof Integer integer ? integer + offset : 0;
    return elements > 0 ? elements : WHOLE;
  }

  /** Returns the numbers of elements to request from the scan, by the name of the column. */
  Map<String, Integer> requests(List<? extends Attribute> columns) {
    Map<String, Integer> requests = new TreeMap<>();
    for (Attribute column : columns) {
      Integer elements = used.get(column.exprId());
      if (column.dataType() instanceof ArrayType && elements != null && elements != WHOLE) {
        requests.put(column.name(), elements);
      }
    }
    return requests;
  }

  /** Records the vectors after the scan. */
  void recordShortened(List<? extends Attribute> columns, Map<String, Integer> sizesByName) {
    for (Attribute column : columns) {
      Integer size = sizesByName.get(column.name());
      if (size != null) sizes.put(column.exprId(), size);
    }
  }

  List<Expression> rewriteAll(List<? extends Expression> expressions) {
    return Trees.mapAll(expressions, this::rewrite);
  }

  Expression rewrite(Expression e) {
    if (sizes.isEmpty()) return e;
    if (e instanceof Size size && size.child() instanceof AttributeReference column) {
      Integer elements = sizes.get(column.exprId());
      if (elements == null) return e;
      Integer sizeOfNull = size.legacySizeOfNull() ? -1 : null;
      return new If(new IsNull(column), integer(sizeOfNull), integer(elements));
    }
    return Trees.mapChildren(e, this::rewrite);
  }

  private static Literal integer(Integer value) {
    return Literal$.MODULE$.create((Object) value, IntegerType$.MODULE$);
  }
}
