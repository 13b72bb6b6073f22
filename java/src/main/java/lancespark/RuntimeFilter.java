package lancespark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.LongSummaryStatistics;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.DynamicPruning;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningSubquery;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DatetimeType;
import org.apache.spark.sql.types.IntegralType;
import scala.math.BigInt;

/**
 * Describes the conditions known only while the query runs, in the form of {@link LancePredicates}:
 * values of the other side of a join, and comparisons with the value of a scalar subquery.
 */
final class RuntimeFilter {
  /** Most values. Each task parses them, in 40 ms for 10,000. */
  private static final int MAX_VALUES = 10000;

  /** The other side of a join has at most half the bytes of the scan. */
  private static final int SIZE_SHARE = 2;

  private static final Set<String> OPERATORS = Set.of("in", "=", "<=>", "<", "<=", ">", ">=");

  private RuntimeFilter() {}

  /** Returns the conditions of joins on columns. Spark gives their values to the scan below. */
  static List<Expression> joins(List<Expression> filters) {
    return filters.stream()
        .flatMap(filter -> Trees.conjuncts(filter).stream())
        .filter(
            e ->
                e instanceof DynamicPruningSubquery join
                    && join.pruningKey() instanceof AttributeReference)
        .toList();
  }

  /** Tells whether the other side of a join is much smaller than a scan. Its keys cost time. */
  static boolean isSmaller(Expression join, LanceScan scan) {
    BigInt size = ((DynamicPruningSubquery) join).plan().stats().sizeInBytes();
    return size.isValidLong() && size.longValue() <= scan.bytes / SIZE_SHARE;
  }

  /** Removes the conditions of joins. Returns null for a condition of joins alone. */
  static Expression withoutJoins(Expression filter) {
    if (!filter.exists(Scala.function(e -> e instanceof DynamicPruning))) return filter;
    return Trees.conjuncts(filter).stream()
        .filter(e -> !(e instanceof DynamicPruning))
        .reduce(And::new)
        .orElse(null);
  }

  /** Removes the conditions of joins from a plan for another version. */
  static LogicalPlan withoutJoins(LogicalPlan plan) {
    return plan.transformDownWithSubqueries(
        Trees.rule(
            node ->
                node instanceof Filter filter
                    && filter.condition().exists(Scala.function(e -> e instanceof DynamicPruning)),
            node -> {
              Filter filter = (Filter) node;
              Expression condition = withoutJoins(filter.condition());
              return condition == null ? filter.child() : new Filter(condition, filter.child());
            }));
  }

  /** Returns the columns of a scan with values that Spark may give, or none without conditions. */
  static NamedReference[] columns(
      UnplannedScan scan, List<Expression> filters, List<? extends Attribute> output) {
    if (filters.stream().noneMatch(SubqueryExpression$.MODULE$::hasSubquery)) {
      return new NamedReference[0];
    }
    Set<String> names = output.stream().map(Attribute::name).collect(Collectors.toSet());
    return Arrays.stream(scan.filterAttributes())
        .filter(column -> names.contains(column.fieldNames()[0]))
        .toArray(NamedReference[]::new);
  }

  /** Returns the conjunction of all conditions with a description, or null without any. */
  static Json describe(Predicate... predicates) {
    List<Json> known =
        Arrays.stream(predicates).map(RuntimeFilter::condition).filter(e -> e != null).toList();
    if (known.size() < 2) return known.isEmpty() ? null : known.get(0);
    return new Json().with("op", "and").with("args", known);
  }

  private static Json condition(Predicate predicate) {
    String operator = predicate.name().toLowerCase(Locale.ROOT);
    var operands = List.of(predicate.children());
    if (!OPERATORS.contains(operator) || !(operands.get(0) instanceof NamedReference column)) {
      return null;
    }
    List<Literal<?>> values = new ArrayList<>();
    for (var operand : operands.subList(1, operands.size())) {
      if (!(operand instanceof Literal<?> value)) return null;
      values.add(value);
    }
    if (values.isEmpty()) return LancePredicates.never();
    if (values.size() > MAX_VALUES) return range(column, values);
    Json comparison = comparison(operator, column, values);
    return comparison == null ? null : comparison.with("most", MAX_VALUES);
  }

  /** Returns the range of integers, dates or timestamps, or null for other values. */
  private static Json range(NamedReference column, List<Literal<?>> values) {
    DataType type = values.get(0).dataType();
    if (!(type instanceof IntegralType) && !(type instanceof DatetimeType)) return null;
    LongSummaryStatistics numbers =
        values.stream()
            .filter(value -> value.value() != null)
            .mapToLong(value -> ((Number) value.value()).longValue())
            .summaryStatistics();
    Json least = comparison(">=", column, List.of(new LiteralValue<>(numbers.getMin(), type)));
    Json most = comparison("<=", column, List.of(new LiteralValue<>(numbers.getMax(), type)));
    return new Json().with("op", "and").with("args", List.of(least, most));
  }

  private static Json comparison(String operator, NamedReference column, List<Literal<?>> values) {
    DataType type = values.get(0).dataType();
    List<Json> args = new ArrayList<>();
    args.add(
        new Json()
            .with("op", "col")
            .with("name", List.of(column.fieldNames()))
            .with("type", type.catalogString()));
    for (Literal<?> value : values) {
      Json literal = LancePredicates.literal(value.value(), type);
      if (literal == null) return null;
      args.add(literal);
    }
    return new Json().with("op", operator).with("args", args);
  }
}
