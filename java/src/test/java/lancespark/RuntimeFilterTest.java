package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;

import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningExpression;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType$;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;

/** Conditions that Spark knows while a query runs. */
final class RuntimeFilterTest {
  private static final AttributeReference NUMBER = Trees.attribute("n", IntegerType$.MODULE$, true);

  private static Predicate predicate(String name, DataType type, Stream<?> values) {
    Stream<org.apache.spark.sql.connector.expressions.Expression> literals =
        values.map(value -> new LiteralValue<>(value, type));
    return new Predicate(
        name,
        Stream.concat(Stream.of(new FieldReference(Scala.seqOf("n"))), literals)
            .toArray(org.apache.spark.sql.connector.expressions.Expression[]::new));
  }

  private static Predicate keys(int number) {
    return predicate("IN", IntegerType$.MODULE$, IntStream.range(0, number).boxed());
  }

  @Test
  void keysAreListOfValues() {
    assertEquals(
        "{\"op\":\"in\",\"args\":[{\"op\":\"col\",\"name\":[\"n\"],\"type\":\"int\"},"
            + "{\"op\":\"lit\",\"type\":\"int\",\"value\":\"0\"},"
            + "{\"op\":\"lit\",\"type\":\"int\",\"value\":\"1\"}],\"most\":10000}",
        Json.write(RuntimeFilter.describe(keys(2))));
  }

  @Test
  void noKeysSelectNoRow() {
    assertEquals(
        "{\"op\":\"lit\",\"type\":\"boolean\",\"value\":false}",
        Json.write(RuntimeFilter.describe(keys(0))));
  }

  @Test
  void manyIntegersAreRange() {
    List<Json> ends = RuntimeFilter.describe(keys(10_001)).objects("args");
    assertEquals(List.of(">=", "<="), ends.stream().map(end -> end.text("op")).toList());
    assertEquals("0", ends.get(0).objects("args").get(1).text("value"));
    assertEquals("10000", ends.get(1).objects("args").get(1).text("value"));
  }

  @Test
  void manyTextsAndUnknownConditionsAreLeftOut() {
    Stream<UTF8String> texts =
        IntStream.range(0, 10_001).mapToObj(i -> UTF8String.fromString("" + i));
    Predicate many = predicate("IN", StringType$.MODULE$, texts);
    Predicate other = predicate("STARTS_WITH", IntegerType$.MODULE$, Stream.of(1));
    assertNull(RuntimeFilter.describe(many, other));
    assertEquals(
        "=",
        RuntimeFilter.describe(many, predicate("=", IntegerType$.MODULE$, Stream.of(1)))
            .text("op"));
    assertEquals("and", RuntimeFilter.describe(keys(1), keys(2)).text("op"));
  }

  @Test
  void conditionsOfJoinsLeaveFilter() {
    Expression join = new DynamicPruningExpression(Literal$.MODULE$.apply((Object) true));
    Expression plain = new IsNotNull(NUMBER);
    assertSame(plain, RuntimeFilter.withoutJoins(new And(join, plain)));
    assertNull(RuntimeFilter.withoutJoins(new And(join, join)));
  }
}
