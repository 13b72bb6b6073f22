package lancespark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.aggregate.*;
import org.apache.spark.sql.types.*;

/**
 * Aggregates as partial results of the scan, and the final ones over them: one result per partition, or, where rows are grouped by
 * columns, one per group of some rows.
 */
final class Partials {
  /** What the scan has to answer, as JSON values. */
  final List calls = new ArrayList();
  /** The columns in which it answers. */
  final List attributes = new ArrayList();
  private final List columns;
  private final List grouping;
  private List values;

  Partials(List columns, List grouping) {
    this.columns = columns;
    this.grouping = grouping;
  }

  /** Whether the scan can group rows by these columns, whose values then come along with the results. */
  boolean groups() {
    for (int i = 0; i < grouping.size(); i++) {
      Expression key = (Expression) grouping.get(i);
      if (!isColumn(key) || !isOrdered(key.dataType()) || key.dataType() instanceof DecimalType) return false;
      Map call = new LinkedHashMap();
      call.put("fn", "group");
      call.put("column", ((Attribute) key).name());
      call.put("name", ((Attribute) key).name());
      calls.add(call);
      attributes.add(key);
    }
    return true;
  }

  /** Returns the expressions over the partial results, or null where one of them needs the rows. */
  List rewriteAll(List expressions) {
    List rewritten = new ArrayList();
    Iterator each = expressions.iterator();
    while (each.hasNext()) {
      Expression result = rewrite((Expression) each.next());
      if (result == null) return null;
      rewritten.add(result);
    }
    return rewritten;
  }

  /** Returns expressions with these values, one for each call, in place of the aggregates. */
  List answered(List expressions, List values) {
    this.values = values;
    return rewriteAll(expressions);
  }

  private Expression rewrite(Expression e) {
    if (e instanceof AggregateExpression) return call((AggregateExpression) e);
    if (e instanceof AttributeReference) return contains(grouping, (AttributeReference) e) ? e : null;
    List children = new ArrayList();
    Iterator each = Reflection.list(e.children()).iterator();
    while (each.hasNext()) {
      Expression child = rewrite((Expression) each.next());
      if (child == null) return null;
      children.add(child);
    }
    return children.isEmpty() ? e : (Expression) e.withNewChildren(Reflection.seq(children));
  }

  private Expression call(AggregateExpression e) {
    if (e.isDistinct() || e.filter().isDefined()) return null;
    AggregateFunction function = e.aggregateFunction();
    if (function instanceof Count) {
      List counted = Reflection.list(((Count) function).children());
      if (counted.size() != 1) return null;
      Expression child = (Expression) counted.get(0);
      boolean rows = child instanceof Literal ? ((Literal) child).value() != null : isColumn(child) && !child.nullable();
      if (!rows && !isColumn(child)) return null;
      Attribute partial = partial(rows ? "count_star" : "count", rows ? null : (Attribute) child, LongType$.MODULE$);
      if (values != null) return Literal$.MODULE$.apply(Long.valueOf(((Number) values.get(attributes.indexOf(partial))).longValue()));
      List orZero = new ArrayList();
      orZero.add(new Sum(partial).toAggregateExpression());
      orZero.add(Literal$.MODULE$.apply(Long.valueOf(0L)));
      return new Coalesce(Reflection.seq(orZero));
    }
    if (function instanceof Sum) {
      Expression child = ((Sum) function).child();
      // try_sum is another function; sums of wider types overflow, and those of floats depend on the order.
      boolean isSmall = child.dataType() instanceof ByteType || child.dataType() instanceof ShortType || child.dataType() instanceof IntegerType;
      if (!isColumn(child) || !isSmall || !function.equals(new Sum(child))) return null;
      return new Sum(partial("sum", (Attribute) child, LongType$.MODULE$)).toAggregateExpression();
    }
    boolean min = function instanceof Min;
    if (!min && !(function instanceof Max)) return null;
    Expression child = min ? ((Min) function).child() : ((Max) function).child();
    if (!isColumn(child) || !isOrdered(child.dataType())) return null;
    // Arrow has no extremes of groups for every type.
    if (!grouping.isEmpty() && !(child.dataType() instanceof IntegralType || child.dataType() instanceof DatetimeType)) return null;
    Attribute partial = partial(min ? "min" : "max", (Attribute) child, child.dataType());
    return min ? new Min(partial).toAggregateExpression() : new Max(partial).toAggregateExpression();
  }

  private boolean isColumn(Expression e) {
    if (!(e instanceof AttributeReference) || ((AttributeReference) e).name().startsWith("_row")) return false;
    return contains(columns, (AttributeReference) e);
  }

  private static boolean contains(List attributes, AttributeReference e) {
    Iterator each = attributes.iterator();
    while (each.hasNext()) {
      if (((Attribute) each.next()).exprId().equals(e.exprId())) return true;
    }
    return false;
  }

  /** Types that Lance and Spark order alike. Floats they do not: NaN and -0.0. */
  private static boolean isOrdered(DataType type) {
    return type instanceof IntegralType || type instanceof DateType || type instanceof TimestampType || type instanceof TimestampNTZType
        || type instanceof DecimalType || type instanceof BooleanType || type.catalogString().equals("string");
  }

  private Attribute partial(String function, Attribute column, DataType type) {
    Map call = new LinkedHashMap();
    call.put("fn", function);
    call.put("column", column == null ? null : column.name());
    for (int i = 0; i < calls.size(); i++) {
      Map other = new LinkedHashMap((Map) calls.get(i));
      other.remove("name");
      if (other.equals(call)) return (Attribute) attributes.get(i);
    }
    String name = "__agg_" + calls.size();
    call.put("name", name);
    calls.add(call);
    Attribute attribute = new AttributeReference(name, type, true, Metadata$.MODULE$.empty(), NamedExpression$.MODULE$.newExprId(), Reflection.seq(new ArrayList()));
    attributes.add(attribute);
    return attribute;
  }
}
