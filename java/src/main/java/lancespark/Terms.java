package lancespark;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;

/**
 * What a sum adds up, described for lance_spark/read/aggregates/terms.py, where integers can compute exactly what Spark's decimals would:
 * no digit behind the point is rounded away, and what has more than 38 digits is an error for both.
 */
final class Terms {
  /** Digits that products may have: Arrow's integers have 76, and sums of some million rows take 7 of them. */
  private static final int MAX_DIGITS = 68;
  private static final int SPARK_DIGITS = 38;
  /** Digits of a decimal that fits 64 bits. */
  private static final int STORED_DIGITS = 18;
  private final List columns;
  private final boolean ansi;

  Terms(List columns, boolean ansi) {
    this.columns = columns;
    this.ansi = ansi;
  }

  /** A described expression. */
  static final class Term {
    final Map json;
    /** Most digits of its value, and how many of them are behind the point. */
    final int digits;
    final int scale;

    Term(Map json, int digits, int scale) {
      this.json = json;
      this.digits = digits;
      this.scale = scale;
    }

    boolean isColumn() {
      return json.containsKey("name");
    }
  }

  /** Returns the description of an integer or decimal; null where it has none. */
  Term of(Expression e) {
    if (e instanceof AttributeReference) return Partials.isIn(columns, e) ? column("col", (AttributeReference) e) : null;
    if (e instanceof UnscaledValue && ((UnscaledValue) e).child() instanceof AttributeReference) {
      AttributeReference stored = (AttributeReference) ((UnscaledValue) e).child();
      Term term = Partials.isIn(columns, stored) ? column("unscaled", stored) : null;
      return term == null ? null : new Term(term.json, term.digits, 0);
    }
    if (!(e.dataType() instanceof DecimalType)) return null;
    DecimalType type = (DecimalType) e.dataType();
    if (e instanceof Literal) {
      Object value = ((Literal) e).value();
      if (value == null) return null;
      BigDecimal number = ((Decimal) value).toJavaBigDecimal();
      return number.scale() > type.scale() ? null : constant(number.setScale(type.scale()).unscaledValue(), type.precision(), type.scale());
    }
    if (e instanceof Cast) return widened(of(((Cast) e).child()), type);
    if (e instanceof Multiply && e.equals(new Multiply(left(e), right(e)))) return product(of(left(e)), of(right(e)), type);
    if (e instanceof Add && e.equals(new Add(left(e), right(e)))) return sum("+", of(left(e)), of(right(e)), type);
    if (e instanceof Subtract && e.equals(new Subtract(left(e), right(e)))) return sum("-", of(left(e)), of(right(e)), type);
    return null;
  }

  private static Expression left(Expression e) {
    return (Expression) ((BinaryExpression) e).left();
  }

  private static Expression right(Expression e) {
    return (Expression) ((BinaryExpression) e).right();
  }

  private static Term column(String op, AttributeReference column) {
    DataType type = column.dataType();
    int digits = 0;
    int scale = 0;
    if (type instanceof ByteType) digits = 3;
    else if (type instanceof ShortType) digits = 5;
    else if (type instanceof IntegerType) digits = 10;
    else if (type instanceof LongType) digits = 19;
    else if (type instanceof DecimalType && ((DecimalType) type).precision() <= STORED_DIGITS) {
      digits = ((DecimalType) type).precision();
      scale = ((DecimalType) type).scale();
    }
    if (digits == 0) return null;
    Map json = node(op);
    json.put("name", column.name());
    return new Term(json, digits, scale);
  }

  private static Term constant(BigInteger unscaled, int digits, int scale) {
    Map json = node("lit");
    json.put("unscaled", unscaled.toString());
    json.put("scale", Integer.valueOf(scale));
    return new Term(json, digits, scale);
  }

  /** A cast that changes no value. */
  private Term widened(Term term, DecimalType type) {
    if (term == null || type.scale() < term.scale || type.precision() - type.scale() < term.digits - term.scale) return null;
    int more = type.scale() - term.scale;
    if (more == 0) return term;
    return operation("*", term, constant(BigInteger.TEN.pow(more), more + 1, more), term.digits + more, type.scale());
  }

  private Term product(Term left, Term right, DecimalType type) {
    if (left == null || right == null || type.scale() != left.scale + right.scale) return null;
    return operation("*", left, right, left.digits + right.digits + 1, type.scale());
  }

  private Term sum(String op, Term left, Term right, DecimalType type) {
    if (left == null || right == null || type.scale() != Math.max(left.scale, right.scale)) return null;
    int whole = Math.max(left.digits - left.scale, right.digits - right.scale);
    return operation(op, left, right, whole + type.scale() + 1, type.scale());
  }

  private Term operation(String op, Term left, Term right, int digits, int scale) {
    // Without ANSI a row whose value has too many digits is NULL.
    if (digits > MAX_DIGITS || (digits > SPARK_DIGITS && !ansi)) return null;
    Map json = node(op);
    List args = new ArrayList();
    args.add(left.json);
    args.add(right.json);
    json.put("args", args);
    return new Term(json, digits, scale);
  }

  private static Map node(String op) {
    Map node = new LinkedHashMap();
    node.put("op", op);
    return node;
  }
}
