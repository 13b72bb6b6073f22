package lancespark;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;

/**
 * Describes the summands of a sum for lance_spark/read/aggregates/terms.py, if integers compute
 * exactly the result of Spark's decimals: no operation rounds, and more than 38 digits are an error
 * for both.
 */
final class Terms {
  /** Most digits of products. Arrow's integers have 76; sums of a million rows take 7 of them. */
  private static final int MAX_DIGITS = 68;

  private static final int SPARK_DIGITS = 38;

  /** Digits of a decimal of 64 bits. */
  private static final int STORED_DIGITS = 18;

  private final Set<ExprId> columns;
  private final boolean ansi;

  Terms(List<? extends Attribute> columns, boolean ansi) {
    this.columns = Trees.ids(columns);
    this.ansi = ansi;
  }

  /**
   * A described expression.
   *
   * @param digits most digits of its value
   * @param scale number of the digits behind the point
   */
  record Term(Json json, int digits, int scale) {
    boolean isColumn() {
      return json.containsKey("name");
    }
  }

  /** Returns the description of an integer or decimal, or null for other expressions. */
  Term of(Expression e) {
    if (e instanceof AttributeReference column) {
      return Partials.isColumnOf(columns, e) ? column("col", column) : null;
    }
    if (e instanceof UnscaledValue unscaled && unscaled.child() instanceof AttributeReference a) {
      Term term = Partials.isColumnOf(columns, a) ? column("unscaled", a) : null;
      return term == null ? null : new Term(term.json, term.digits, 0);
    }
    if (!(e.dataType() instanceof DecimalType type)) return null;
    if (e instanceof Literal literal) return constant((Decimal) literal.value(), type);
    if (e instanceof Cast cast) return widened(of(cast.child()), type);
    if (!(e instanceof BinaryArithmetic arithmetic)) return null;
    Expression left = arithmetic.left();
    Expression right = arithmetic.right();
    // An operator in another evaluation mode, for example try_add, differs from the default.
    if (e.equals(new Multiply(left, right))) return product(of(left), of(right), type);
    if (e.equals(new Add(left, right))) return sum("+", of(left), of(right), type);
    if (e.equals(new Subtract(left, right))) return sum("-", of(left), of(right), type);
    return null;
  }

  private static Term column(String op, AttributeReference column) {
    DataType type = column.dataType();
    int digits = digitsOf(type);
    int scale = type instanceof DecimalType decimal ? decimal.scale() : 0;
    return digits == 0 ? null : new Term(node(op).with("name", column.name()), digits, scale);
  }

  /** Returns the digits of a type of 64 bits, or 0 for other types. */
  private static int digitsOf(DataType type) {
    if (type instanceof ByteType) return 3;
    if (type instanceof ShortType) return 5;
    if (type instanceof IntegerType) return 10;
    if (type instanceof LongType) return 19;
    boolean isStored = type instanceof DecimalType decimal && decimal.precision() <= STORED_DIGITS;
    return isStored ? ((DecimalType) type).precision() : 0;
  }

  private static Term constant(Decimal value, DecimalType type) {
    if (value == null) return null;
    BigDecimal number = value.toJavaBigDecimal();
    if (number.scale() > type.scale()) return null;
    BigInteger unscaled = number.setScale(type.scale()).unscaledValue();
    return constant(unscaled, type.precision(), type.scale());
  }

  private static Term constant(BigInteger unscaled, int digits, int scale) {
    Json json = node("lit").with("unscaled", unscaled.toString()).with("scale", scale);
    return new Term(json, digits, scale);
  }

  /** Describes a cast without changes of values. */
  private Term widened(Term term, DecimalType type) {
    if (term == null || type.scale() < term.scale) return null;
    if (type.precision() - type.scale() < term.digits - term.scale) return null;
    int more = type.scale() - term.scale;
    if (more == 0) return term;
    Term factor = constant(BigInteger.TEN.pow(more), more + 1, more);
    return operation("*", term, factor, term.digits + more, type.scale());
  }

  private Term product(Term left, Term right, DecimalType type) {
    if (left == null || right == null || type.scale() != left.scale + right.scale) return null;
    return operation("*", left, right, left.digits + right.digits + 1, type.scale());
  }

  private Term sum(String op, Term left, Term right, DecimalType type) {
    if (left == null || right == null) return null;
    if (type.scale() != Math.max(left.scale, right.scale)) return null;
    int whole = Math.max(left.digits - left.scale, right.digits - right.scale);
    return operation(op, left, right, whole + type.scale() + 1, type.scale());
  }

  private Term operation(String op, Term left, Term right, int digits, int scale) {
    // Without ANSI, a row is NULL if its value has too many digits.
    if (digits > MAX_DIGITS || (digits > SPARK_DIGITS && !ansi)) return null;
    return new Term(node(op).with("args", List.of(left.json, right.json)), digits, scale);
  }

  private static Json node(String op) {
    return new Json().with("op", op);
  }
}
