package lancespark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Describes Spark's conditions as JSON values (maps, lists, strings) for lance_spark/pushdown/filters.py, which documents the form and
 * decides what of it Lance can do. Whatever is not known here becomes {"op": "unknown"}.
 */
public final class LancePredicates {
  private LancePredicates() {}

  public static Map describe(Expression e) {
    if (e instanceof And || e instanceof Or) return connective(e);
    if (e instanceof Not) return node("not", one(describe((Expression) ((Not) e).child())));
    if (e instanceof EqualTo) return comparison("=", (BinaryExpression) e);
    if (e instanceof EqualNullSafe) return comparison("<=>", (BinaryExpression) e);
    if (e instanceof LessThan) return comparison("<", (BinaryExpression) e);
    if (e instanceof LessThanOrEqual) return comparison("<=", (BinaryExpression) e);
    if (e instanceof GreaterThan) return comparison(">", (BinaryExpression) e);
    if (e instanceof GreaterThanOrEqual) return comparison(">=", (BinaryExpression) e);
    if (e instanceof StartsWith) return comparison("starts_with", (BinaryExpression) e);
    if (e instanceof EndsWith) return comparison("ends_with", (BinaryExpression) e);
    if (e instanceof Contains) return comparison("contains", (BinaryExpression) e);
    if (e instanceof Like) {
      Map like = comparison("like", (BinaryExpression) e);
      if (like.containsKey("args")) like.put("escape", String.valueOf(((Like) e).escapeChar()));
      return like;
    }
    if (e instanceof IsNull) return withArguments("is_null", one(value((Expression) ((IsNull) e).child())));
    if (e instanceof IsNotNull) return withArguments("is_not_null", one(value((Expression) ((IsNotNull) e).child())));
    if (e instanceof In) return in((In) e);
    if (e instanceof InSet) return inSet((InSet) e);
    Map value = value(e);
    return value == null || !(e.dataType() instanceof BooleanType) ? unknown() : value;
  }

  /** Whether a description has no part that stands for something else. */
  static boolean isKnown(Map described) {
    if ("unknown".equals(described.get("op"))) return false;
    Object args = described.get("args");
    for (int i = 0; args != null && i < ((List) args).size(); i++) {
      if (!isKnown((Map) ((List) args).get(i))) return false;
    }
    return true;
  }

  /** One node for a chain of thousands of ANDs or ORs, which recursion would not survive. */
  private static Map connective(Expression e) {
    boolean and = e instanceof And;
    List args = new ArrayList();
    ArrayDeque todo = new ArrayDeque();
    todo.push(e);
    while (!todo.isEmpty()) {
      Expression next = (Expression) todo.pop();
      if (and ? next instanceof And : next instanceof Or) {
        todo.push(((BinaryExpression) next).right());
        todo.push(((BinaryExpression) next).left());
      } else {
        args.add(describe(next));
      }
    }
    return node(and ? "and" : "or", args);
  }

  private static Map comparison(String op, BinaryExpression e) {
    List args = one(value((Expression) e.left()));
    args.add(value((Expression) e.right()));
    return withArguments(op, args);
  }

  private static Map in(In e) {
    List args = one(value(e.value()));
    Iterator items = Reflection.list(e.list()).iterator();
    while (items.hasNext()) {
      Object item = items.next();
      args.add(item instanceof Literal ? value((Expression) item) : null);
    }
    return withArguments("in", args);
  }

  private static Map inSet(InSet e) {
    List args = one(value((Expression) e.child()));
    Iterator items = Reflection.list(e.hset()).iterator();
    while (items.hasNext()) args.add(literal(items.next(), e.child().dataType()));
    return withArguments("in", args);
  }

  /** A column, a field of one, or a literal; null for anything else. */
  private static Map value(Expression e) {
    if (e instanceof Literal) return literal(((Literal) e).value(), e.dataType());
    List name = new ArrayList();
    Expression at = e;
    while (at instanceof GetStructField) {
      GetStructField field = (GetStructField) at;
      name.add(0, ((StructType) field.child().dataType()).fields()[field.ordinal()].name());
      at = field.child();
    }
    if (!(at instanceof AttributeReference)) return null;
    name.add(0, ((AttributeReference) at).name());
    Map column = node("col", null);
    column.put("name", name);
    column.put("type", e.dataType().catalogString());
    return column;
  }

  private static Map literal(Object value, DataType type) {
    Object written;
    if (value == null || value instanceof Boolean) {
      written = value;
    } else if (value instanceof UTF8String) {
      written = value.toString();
      // Spark's strings may hold bytes that are no UTF-8, which a Java string replaces.
      if (!UTF8String.fromString((String) written).equals(value)) return null;
    } else if (value instanceof byte[]) {
      written = Base64.getEncoder().encodeToString((byte[]) value);
    } else if (value instanceof Decimal) {
      written = ((Decimal) value).toJavaBigDecimal().toPlainString();
    } else if (value instanceof Float) {
      written = String.valueOf(((Float) value).doubleValue());
    } else if (value instanceof Number) {
      written = value.toString();
    } else {
      return null;
    }
    Map literal = node("lit", null);
    literal.put("type", type.catalogString());
    literal.put("value", written);
    return literal;
  }

  private static Map withArguments(String op, List args) {
    return args.contains(null) ? unknown() : node(op, args);
  }

  private static Map unknown() {
    return node("unknown", null);
  }

  private static Map node(String op, List args) {
    Map node = new LinkedHashMap();
    node.put("op", op);
    if (args != null) node.put("args", args);
    return node;
  }

  private static List one(Object item) {
    List list = new ArrayList();
    list.add(item);
    return list;
  }
}
