package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.aggregate.*;
import org.apache.spark.sql.types.*;

/**
 * Splits aggregates into partial results of the scan and final aggregates over them. A partial
 * result covers a partition, or a group of rows of a partition if columns group the rows.
 */
final class Partials {
  /** Digits of partial sums of decimals. */
  private static final int SUM_DIGITS = 38;

  /** Additional digits of the sum of a partition. */
  private static final int MORE_DIGITS = 7;

  /** Most digits of numbers with a sum in a bigint over any partition. */
  private static final int SMALL_DIGITS = 10;

  /** Digits of any bigint. */
  private static final int BIGINT_DIGITS = 19;

  /** A double holds every integer up to this limit, and so sums of integers in any order. */
  private static final long EXACT_SUM = 1L << 53;

  /** Least limit of rows for an average of integers in the scan. */
  private static final long LEAST_ROWS = 1L << 16;

  /** Requests to the scan, as JSON. */
  final List<Json> calls = new ArrayList<>();

  /** Columns of the answer, in the order of the requests. */
  final List<AttributeReference> attributes = new ArrayList<>();

  /** Positions of the requests for values, by their JSON without a name. */
  private final Map<Json, Integer> positions = new HashMap<>();

  private final Set<ExprId> columns;
  private final List<? extends Expression> grouping;
  private final boolean ansi;
  private final Terms terms;
  private List<Object> values;

  /** Most rows of a table for which the results equal Spark's. */
  long mostRows = Long.MAX_VALUE;

  Partials(List<? extends Attribute> columns, List<? extends Expression> grouping, boolean ansi) {
    this.columns = Trees.ids(columns);
    this.grouping = grouping;
    this.ansi = ansi;
    this.terms = new Terms(columns, ansi);
  }

  /** Tells whether the scan can group by the columns. The answer then contains their values. */
  boolean groups() {
    for (Expression key : grouping) {
      if (!isColumn(key) || !isOrdered(key.dataType())) return false;
      if (key.dataType() instanceof DecimalType) return false;
      AttributeReference column = (AttributeReference) key;
      calls.add(call("group", column).with("name", column.name()));
      attributes.add(column);
    }
    return true;
  }

  /** Returns the expressions over the partial results, or null if an expression needs the rows. */
  List<Expression> rewriteAll(List<? extends Expression> expressions) {
    List<Expression> rewritten = new ArrayList<>();
    for (Expression e : expressions) {
      Expression result = rewrite(e);
      if (result == null) return null;
      rewritten.add(result);
    }
    return rewritten;
  }

  /** Replaces the aggregates of expressions by values, in the order of the requests. */
  List<Expression> withValues(List<? extends Expression> expressions, List<Object> answer) {
    this.values = answer;
    return rewriteAll(expressions);
  }

  private Expression rewrite(Expression e) {
    if (e instanceof AggregateExpression aggregate) return finalAggregate(aggregate);
    if (e instanceof AttributeReference)
      return Trees.contains(Trees.ids(attributesOf(grouping)), e) ? e : null;
    List<Expression> children = rewriteAll(Trees.children(e));
    if (children == null) return null;
    return children.isEmpty() ? e : e.withNewChildren(Scala.seq(children));
  }

  private static List<Attribute> attributesOf(List<? extends Expression> expressions) {
    return expressions.stream().map(Attribute.class::cast).toList();
  }

  private Expression finalAggregate(AggregateExpression e) {
    if (e.isDistinct() || e.filter().isDefined()) return null;
    AggregateFunction function = e.aggregateFunction();
    if (function instanceof Count count) return count(count);
    // try_sum and try_avg are other functions.
    if (function instanceof Sum sum) {
      return sum.equals(new Sum(sum.child())) ? sum(sum.child(), sum.dataType()) : null;
    }
    if (function instanceof Average average) {
      return average.equals(new Average(average.child())) ? average(average) : null;
    }
    if (function instanceof Min min && hasExtremes(min.child())) {
      return new Min(extreme("min", min.child())).toAggregateExpression();
    }
    if (function instanceof Max max && hasExtremes(max.child())) {
      return new Max(extreme("max", max.child())).toAggregateExpression();
    }
    return null;
  }

  private boolean hasExtremes(Expression child) {
    if (!isColumn(child) || !isOrdered(child.dataType())) return false;
    // Arrow has extremes of groups only for some types.
    return grouping.isEmpty()
        || child.dataType() instanceof IntegralType
        || child.dataType() instanceof DatetimeType;
  }

  private Attribute extreme(String function, Expression child) {
    return partial(call(function, (Attribute) child), child.dataType());
  }

  private Expression count(Count function) {
    List<Expression> arguments = Scala.list(function.children());
    if (arguments.size() != 1) return null;
    Expression child = arguments.get(0);
    boolean rows =
        child instanceof Literal literal
            ? literal.value() != null
            : isColumn(child) && !child.nullable();
    return rows || isColumn(child) ? count(rows ? null : (Attribute) child) : null;
  }

  /** Counts the values of a column without NULLs; without a column, counts rows. */
  private Expression count(Attribute column) {
    String function = column == null ? "count_star" : "count";
    int position = position(call(function, column), LongType$.MODULE$);
    if (values != null) return longLiteral(((Number) values.get(position)).longValue());
    Attribute partial = attributes.get(position);
    return new Coalesce(Scala.seqOf(new Sum(partial).toAggregateExpression(), longLiteral(0L)));
  }

  private static Literal longLiteral(long value) {
    return Literal$.MODULE$.apply((Object) value);
  }

  /**
   * Returns a sum of partial sums; null for floats, because the order of rows changes their sum.
   * Groups have partial sums of columns with 64 bits and without a point. The scan returns several
   * partial sums if the sum of a group does not fit.
   */
  private Expression sum(Expression child, DataType type) {
    Terms.Term term = terms.of(child);
    if (term == null) return null;
    Json call = call("sum", null).with("term", term.json());
    boolean decimals = child.dataType() instanceof DecimalType;
    boolean isStored = term.isColumn() && !grouping.isEmpty();
    if (isStored || (!decimals && term.digits() <= SMALL_DIGITS)) {
      Expression partial = partial(call, LongType$.MODULE$);
      if (decimals) partial = new MakeDecimal(partial, BIGINT_DIGITS, term.scale(), false);
      return sumAs(type, partial);
    }
    // Without ANSI, a sum outside of its type is NULL or wraps around.
    if (!ansi && (!decimals || term.digits() + MORE_DIGITS > SUM_DIGITS)) return null;
    call.put("scale", term.scale());
    return sumAs(type, partial(call, new DecimalType(SUM_DIGITS, term.scale())));
  }

  private static Expression sumAs(DataType type, Expression partial) {
    Expression result = new Sum(partial).toAggregateExpression();
    return result.dataType().equals(type) ? result : SparkRelease.create(Cast.class, result, type);
  }

  /** Computes an average as Spark does, from the sum and the number of values. */
  private Expression average(Average function) {
    Expression child = function.child();
    Expression column = child instanceof UnscaledValue unscaled ? unscaled.child() : child;
    Terms.Term term = isColumn(column) ? terms.of(child) : null;
    if (term == null) return null;
    if (!(child.dataType() instanceof DecimalType)) {
      // Spark adds integers up as doubles.
      long farthest =
          child.dataType() instanceof IntegerType
              ? 1L << 31
              : (long) Math.pow(10, Math.min(term.digits(), 18));
      long rows = EXACT_SUM / farthest;
      if (rows < LEAST_ROWS) return null;
      mostRows = Math.min(mostRows, rows);
    }
    List<AttributeReference> buffer = Scala.list(function.aggBufferAttributes());
    Expression sum = sum(child, buffer.get(0).dataType());
    if (sum == null) return null;
    Expression count = count(column.nullable() ? (Attribute) column : null);
    return withBuffer(function.evaluateExpression(), buffer, sum, count);
  }

  private static Expression withBuffer(
      Expression e, List<AttributeReference> buffer, Expression sum, Expression count) {
    if (e.equals(buffer.get(0))) return sum;
    if (e.equals(buffer.get(1))) return count;
    return Trees.mapChildren(e, child -> withBuffer(child, buffer, sum, count));
  }

  private boolean isColumn(Expression e) {
    return isColumnOf(columns, e);
  }

  /** Tells whether an expression is a stored column of a table. */
  static boolean isColumnOf(Set<ExprId> columns, Expression e) {
    return Trees.contains(columns, e) && !((Attribute) e).name().startsWith("_row");
  }

  /** Types with the same order in Lance and Spark. Floats differ in NaN and -0.0. */
  private static boolean isOrdered(DataType type) {
    return type instanceof IntegralType
        || type instanceof DateType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType
        || type instanceof DecimalType
        || type instanceof BooleanType
        || type.catalogString().equals("string");
  }

  private static Json call(String function, Attribute column) {
    return new Json().with("fn", function).with("column", column == null ? null : column.name());
  }

  /** Adds a request unless an equal request exists. Returns the column of the answer. */
  private Attribute partial(Json call, DataType type) {
    return attributes.get(position(call, type));
  }

  /** Adds a request unless an equal request exists. Returns the position in the answer. */
  private int position(Json call, DataType type) {
    return positions.computeIfAbsent(
        call,
        added -> {
          String name = "__agg_" + calls.size();
          calls.add(new Json(added).with("name", name));
          attributes.add(Trees.attribute(name, type, true));
          return calls.size() - 1;
        });
  }
}
