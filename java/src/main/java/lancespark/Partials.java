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
  /** Digits of partial sums of decimals, and those by which the sum of a partition's rows may be longer than each. */
  private static final int SUM_DIGITS = 38;
  private static final int MORE_DIGITS = 7;
  /** Digits of numbers of which a bigint holds the sum of any partition. */
  private static final int SMALL_DIGITS = 10;
  /** Digits of any bigint. */
  private static final int BIGINT_DIGITS = 19;
  /** Up to here a double holds every integer, and so sums of integers in any order. */
  private static final long EXACT_SUM = 1L << 53;
  /** Rows of integers below which the scan is not asked for an average. */
  private static final long LEAST_ROWS = 1L << 16;
  /** What the scan has to answer, as JSON values. */
  final List calls = new ArrayList();
  /** The columns in which it answers. */
  final List attributes = new ArrayList();
  private final List columns;
  private final List grouping;
  private final boolean ansi;
  private final Terms terms;
  private List values;
  /** Most rows of a table for which the results are Spark's. */
  long mostRows = Long.MAX_VALUE;

  Partials(List columns, List grouping, boolean ansi) {
    this.columns = columns;
    this.grouping = grouping;
    this.ansi = ansi;
    this.terms = new Terms(columns, ansi);
  }

  /** Whether the scan can group rows by these columns, whose values then come along with the results. */
  boolean groups() {
    for (int i = 0; i < grouping.size(); i++) {
      Expression key = (Expression) grouping.get(i);
      if (!isColumn(key) || !isOrdered(key.dataType()) || key.dataType() instanceof DecimalType) return false;
      Map call = call("group", (Attribute) key);
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
      return rows || isColumn(child) ? count(rows ? null : (Attribute) child) : null;
    }
    // try_sum and try_avg are other functions.
    if (function instanceof Sum) {
      Expression child = ((Sum) function).child();
      return function.equals(new Sum(child)) ? sum(child, function.dataType()) : null;
    }
    if (function instanceof Average) {
      Expression child = ((Average) function).child();
      return function.equals(new Average(child)) ? average((Average) function, child) : null;
    }
    boolean min = function instanceof Min;
    if (!min && !(function instanceof Max)) return null;
    Expression child = min ? ((Min) function).child() : ((Max) function).child();
    if (!isColumn(child) || !isOrdered(child.dataType())) return null;
    // Arrow has no extremes of groups for every type.
    if (!grouping.isEmpty() && !(child.dataType() instanceof IntegralType || child.dataType() instanceof DatetimeType)) return null;
    Attribute partial = partial(call(min ? "min" : "max", (Attribute) child), child.dataType());
    return min ? new Min(partial).toAggregateExpression() : new Max(partial).toAggregateExpression();
  }

  /** The number of values of a column that are not NULL; of rows where it is null. */
  private Expression count(Attribute column) {
    Attribute partial = partial(call(column == null ? "count_star" : "count", column), LongType$.MODULE$);
    if (values != null) return Literal$.MODULE$.apply(Long.valueOf(((Number) values.get(attributes.indexOf(partial))).longValue()));
    List orZero = new ArrayList();
    orZero.add(new Sum(partial).toAggregateExpression());
    orZero.add(Literal$.MODULE$.apply(Long.valueOf(0L)));
    return new Coalesce(Reflection.seq(orZero));
  }

  /**
   * A sum, as a sum of partial ones. Those of floats depend on the order of rows. Of columns, groups have partial sums of 64 bits, without a
   * point: the scan gives a group several of them where one would not do.
   */
  private Expression sum(Expression child, DataType type) {
    Terms.Term term = terms.of(child);
    if (term == null) return null;
    Map call = call("sum", null);
    call.put("term", term.json);
    boolean decimals = child.dataType() instanceof DecimalType;
    boolean stored = term.isColumn() && !grouping.isEmpty();
    if (stored || (!decimals && term.digits <= SMALL_DIGITS)) {
      Expression partial = partial(call, LongType$.MODULE$);
      return as(type, new Sum(decimals ? new MakeDecimal(partial, BIGINT_DIGITS, term.scale, false) : partial));
    }
    // Without ANSI a sum that is too large is NULL, or begins again from below.
    if (!ansi && (!decimals || term.digits + MORE_DIGITS > SUM_DIGITS)) return null;
    call.put("scale", Integer.valueOf(term.scale));
    return as(type, new Sum(partial(call, new DecimalType(SUM_DIGITS, term.scale))));
  }

  private static Expression as(DataType type, AggregateFunction function) {
    Expression result = function.toAggregateExpression();
    if (result.dataType().equals(type)) return result;
    try {
      return (Expression) Reflection.create(Cast.class, new Object[] {result, type});
    } catch (Exception error) {
      throw new LancePushdown.RewriteFailure(error);
    }
  }

  /** An average, as Spark computes it from the sum and the number of values. */
  private Expression average(Average function, Expression child) {
    Expression column = child instanceof UnscaledValue ? ((UnscaledValue) child).child() : child;
    Terms.Term term = isColumn(column) ? terms.of(child) : null;
    if (term == null) return null;
    if (!(child.dataType() instanceof DecimalType)) {
      // Spark adds integers up as doubles.
      long farthest = child.dataType() instanceof IntegerType ? 1L << 31 : (long) Math.pow(10, Math.min(term.digits, 18));
      long rows = EXACT_SUM / farthest;
      if (rows < LEAST_ROWS) return null;
      mostRows = Math.min(mostRows, rows);
    }
    List buffer = Reflection.list(function.aggBufferAttributes());
    Expression sum = sum(child, ((Attribute) buffer.get(0)).dataType());
    if (sum == null) return null;
    return withBuffer(function.evaluateExpression(), buffer, sum, count(column.nullable() ? (Attribute) column : null));
  }

  private static Expression withBuffer(Expression e, List buffer, Expression sum, Expression count) {
    if (e.equals(buffer.get(0))) return sum;
    if (e.equals(buffer.get(1))) return count;
    List children = new ArrayList();
    Iterator each = Reflection.list(e.children()).iterator();
    while (each.hasNext()) children.add(withBuffer((Expression) each.next(), buffer, sum, count));
    return children.isEmpty() ? e : (Expression) e.withNewChildren(Reflection.seq(children));
  }

  private boolean isColumn(Expression e) {
    return isIn(columns, e);
  }

  /** Whether an expression is one of a table's own columns. */
  static boolean isIn(List columns, Expression e) {
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

  private static Map call(String function, Attribute column) {
    Map call = new LinkedHashMap();
    call.put("fn", function);
    call.put("column", column == null ? null : column.name());
    return call;
  }

  private Attribute partial(Map call, DataType type) {
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
