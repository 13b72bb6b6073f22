package lancespark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Describes Spark's conditions as JSON for lance_spark/pushdown/filters.py. The module documents
 * the form and selects the conditions for Lance. A condition without a description becomes {"op":
 * "unknown"}.
 */
final class LancePredicates {
  private static final Map<Class<? extends BinaryExpression>, String> COMPARISONS =
      Map.of(
          EqualTo.class, "=",
          EqualNullSafe.class, "<=>",
          LessThan.class, "<",
          LessThanOrEqual.class, "<=",
          GreaterThan.class, ">",
          GreaterThanOrEqual.class, ">=",
          StartsWith.class, "starts_with",
          EndsWith.class, "ends_with",
          Contains.class, "contains");

  private LancePredicates() {}

  static Json describe(Expression e) {
    if (e instanceof And || e instanceof Or) return connective((BinaryOperator) e);
    if (e instanceof Not not) return node("not", List.of(describe(not.child())));
    if (e instanceof BinaryExpression binary && COMPARISONS.containsKey(e.getClass())) {
      return comparison(COMPARISONS.get(e.getClass()), binary);
    }
    if (e instanceof Like like) {
      Json node = comparison("like", like);
      if (node.containsKey("args")) node.put("escape", String.valueOf(like.escapeChar()));
      return node;
    }
    if (e instanceof IsNull isNull) return operation("is_null", value(isNull.child()));
    if (e instanceof IsNotNull isNotNull) return operation("is_not_null", value(isNotNull.child()));
    if (e instanceof In in) return in(in);
    if (e instanceof InSet inSet) return inSet(inSet);
    Json value = value(e);
    return value == null || !(e.dataType() instanceof BooleanType) ? unknown() : value;
  }

  /** Tells whether every part of a condition has a description. */
  static boolean isKnown(Json description) {
    return !"unknown".equals(description.text("op"))
        && description.objects("args").stream().allMatch(LancePredicates::isKnown);
  }

  /** Describes a chain of thousands of ANDs or ORs as a single node. Recursion would overflow. */
  private static Json connective(BinaryOperator e) {
    List<Json> args = new ArrayList<>();
    ArrayDeque<Expression> stack = new ArrayDeque<>();
    stack.push(e);
    while (!stack.isEmpty()) {
      Expression next = stack.pop();
      if (next instanceof BinaryOperator same && same.getClass() == e.getClass()) {
        stack.push(same.right());
        stack.push(same.left());
      } else {
        args.add(describe(next));
      }
    }
    return node(e instanceof And ? "and" : "or", args);
  }

  private static Json comparison(String op, BinaryExpression e) {
    return operation(op, value(e.left()), value(e.right()));
  }

  private static Json in(In e) {
    List<Json> args = new ArrayList<>();
    args.add(value(e.value()));
    for (Expression item : Scala.list(e.list())) {
      args.add(item instanceof Literal ? value(item) : null);
    }
    return operation("in", args);
  }

  private static Json inSet(InSet e) {
    List<Json> args = new ArrayList<>();
    args.add(value(e.child()));
    for (Object item : Scala.list(e.hset())) args.add(literal(item, e.child().dataType()));
    return operation("in", args);
  }

  /** Describes a column, a field of a column, or a literal. Returns null for other expressions. */
  private static Json value(Expression e) {
    if (e instanceof Literal literal) return literal(literal.value(), e.dataType());
    ArrayDeque<String> name = new ArrayDeque<>();
    Expression at = e;
    while (at instanceof GetStructField field) {
      StructType struct = (StructType) field.child().dataType();
      name.addFirst(struct.fields()[field.ordinal()].name());
      at = field.child();
    }
    if (!(at instanceof AttributeReference column)) return null;
    name.addFirst(column.name());
    return node("col").with("name", List.copyOf(name)).with("type", e.dataType().catalogString());
  }

  /** Describes the condition FALSE for every row. */
  static Json never() {
    return literal(false, DataTypes.BooleanType);
  }

  /** Describes a value, or returns null for a value without a description. */
  static Json literal(Object value, DataType type) {
    Object text;
    if (value == null || value instanceof Boolean) {
      text = value;
    } else if (value instanceof UTF8String string) {
      text = string.toString();
      // Strings of Spark may hold bytes outside UTF-8, which a Java string replaces.
      if (!UTF8String.fromString(string.toString()).equals(string)) return null;
    } else if (value instanceof byte[] bytes) {
      text = Base64.getEncoder().encodeToString(bytes);
    } else if (value instanceof Decimal decimal) {
      text = decimal.toJavaBigDecimal().toPlainString();
    } else if (value instanceof Float number) {
      text = String.valueOf(number.doubleValue());
    } else if (value instanceof Number) {
      text = value.toString();
    } else {
      return null;
    }
    return node("lit").with("type", type.catalogString()).with("value", text);
  }

  private static Json operation(String op, Json... args) {
    return operation(op, Arrays.asList(args));
  }

  /** Returns a node, or an unknown node if an argument has no description. */
  private static Json operation(String op, List<Json> args) {
    return args.contains(null) ? unknown() : node(op, args);
  }

  private static Json unknown() {
    return node("unknown");
  }

  private static Json node(String op) {
    return new Json().with("op", op);
  }

  private static Json node(String op, List<Json> args) {
    return node(op).with("args", args);
  }
}
