package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;

/** The JSON of conditions, which lance_spark/pushdown/filters.py reads. */
final class LancePredicatesTest {
  private static final AttributeReference NUMBER = Trees.attribute("n", IntegerType$.MODULE$, true);
  private static final AttributeReference TEXT = Trees.attribute("t", StringType$.MODULE$, true);

  private static Literal literal(Object value, DataType type) {
    return new Literal(value, type);
  }

  private static Literal five() {
    return literal(5, IntegerType$.MODULE$);
  }

  private static String described(Expression e) {
    return Json.write(LancePredicates.describe(e));
  }

  @Test
  void comparisonNamesColumnTypeAndLiteral() {
    assertEquals(
        "{\"op\":\"<=\",\"args\":[{\"op\":\"col\",\"name\":[\"n\"],\"type\":\"int\"},"
            + "{\"op\":\"lit\",\"type\":\"int\",\"value\":\"5\"}]}",
        described(new LessThanOrEqual(NUMBER, five())));
  }

  @Test
  void everyComparisonHasItsOperator() {
    assertEquals("=", LancePredicates.describe(new EqualTo(NUMBER, five())).text("op"));
    assertEquals("<=>", LancePredicates.describe(new EqualNullSafe(NUMBER, five())).text("op"));
    assertEquals("<", LancePredicates.describe(new LessThan(NUMBER, five())).text("op"));
    assertEquals(">", LancePredicates.describe(new GreaterThan(NUMBER, five())).text("op"));
    assertEquals(">=", LancePredicates.describe(new GreaterThanOrEqual(NUMBER, five())).text("op"));
    Literal a = literal(UTF8String.fromString("a"), StringType$.MODULE$);
    assertEquals("starts_with", LancePredicates.describe(new StartsWith(TEXT, a)).text("op"));
    assertEquals("ends_with", LancePredicates.describe(new EndsWith(TEXT, a)).text("op"));
    assertEquals("contains", LancePredicates.describe(new Contains(TEXT, a)).text("op"));
    assertEquals("!", LancePredicates.describe(new Like(TEXT, a, '!')).text("escape"));
  }

  @Test
  void chainOfThousandsOfOrsIsOneNodeInOrder() {
    Expression chain = new EqualTo(NUMBER, literal(0, IntegerType$.MODULE$));
    for (int i = 1; i < 20_000; i++) {
      chain = new Or(chain, new EqualTo(NUMBER, literal(i, IntegerType$.MODULE$)));
    }
    List<Json> args = LancePredicates.describe(chain).objects("args");
    assertEquals(20_000, args.size());
    assertEquals("19999", args.get(19_999).objects("args").get(1).text("value"));
  }

  @Test
  void mixedConnectivesKeepTheirNesting() {
    Expression both = new And(new IsNull(NUMBER), new IsNotNull(TEXT));
    Json described = LancePredicates.describe(new Or(both, new Not(new IsNull(TEXT))));
    assertEquals("or", described.text("op"));
    assertEquals("and", described.objects("args").get(0).text("op"));
    assertEquals("not", described.objects("args").get(1).text("op"));
  }

  @Test
  void fieldOfStructHasItsPath() {
    StructType inner = new StructType().add("x", IntegerType$.MODULE$);
    StructType outer = new StructType().add("skipped", inner).add("in", inner);
    AttributeReference struct = Trees.attribute("s", outer, true);
    Expression field =
        new GetStructField(
            new GetStructField(struct, 1, scala.Option.empty()), 0, scala.Option.empty());
    Json column = LancePredicates.describe(new EqualTo(field, five())).objects("args").get(0);
    assertEquals(List.of("s", "in", "x"), column.texts("name"));
    assertEquals("int", column.text("type"));
  }

  @Test
  void literalsKeepTheirExactValues() {
    Decimal price = Decimal.apply(new java.math.BigDecimal("0.000000010"), 18, 9);
    AttributeReference decimal = Trees.attribute("d", new DecimalType(18, 9), true);
    assertEquals(
        "0.000000010", valueOf(new EqualTo(decimal, literal(price, new DecimalType(18, 9)))));
    AttributeReference bytes = Trees.attribute("b", BinaryType$.MODULE$, true);
    byte[] value = {0, (byte) 255};
    assertEquals("AP8=", valueOf(new EqualTo(bytes, literal(value, BinaryType$.MODULE$))));
    AttributeReference real = Trees.attribute("f", FloatType$.MODULE$, true);
    assertEquals(
        String.valueOf((double) 0.1f),
        valueOf(new EqualTo(real, literal(0.1f, FloatType$.MODULE$))));
  }

  private static Object valueOf(Expression comparison) {
    return LancePredicates.describe(comparison).objects("args").get(1).get("value");
  }

  @Test
  void textOutsideUtf8IsUnknown() {
    UTF8String broken = UTF8String.fromBytes(new byte[] {(byte) 0xC3, 0x28});
    Json described =
        LancePredicates.describe(new EqualTo(TEXT, literal(broken, StringType$.MODULE$)));
    assertEquals("unknown", described.text("op"));
  }

  @Test
  void unknownPartMakesOnlyItsConjunctUnknown() {
    Expression upper =
        new EqualTo(new Upper(TEXT), literal(UTF8String.fromString("A"), StringType$.MODULE$));
    Json described = LancePredicates.describe(new And(new IsNull(NUMBER), upper));
    assertFalse(LancePredicates.isKnown(described));
    assertTrue(LancePredicates.isKnown(described.objects("args").get(0)));
    assertEquals("unknown", described.objects("args").get(1).text("op"));
  }

  @Test
  void listWithAColumnIsUnknown() {
    Expression in = new In(NUMBER, Scala.seqOf(five(), NUMBER));
    assertEquals("unknown", LancePredicates.describe(in).text("op"));
    Json constant = LancePredicates.describe(new In(NUMBER, Scala.seqOf(five(), five())));
    assertEquals(3, constant.objects("args").size());
  }

  @Test
  void onlyBooleanColumnsAreConditions() {
    assertEquals("unknown", LancePredicates.describe(NUMBER).text("op"));
    AttributeReference flag = Trees.attribute("flag", BooleanType$.MODULE$, true);
    assertEquals("col", LancePredicates.describe(flag).text("op"));
  }
}
