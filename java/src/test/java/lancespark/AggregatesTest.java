package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.aggregate.*;
import org.apache.spark.sql.types.*;
import org.junit.jupiter.api.Test;

/** Partial results of aggregates and their terms, which lance_spark/read/aggregates reads. */
final class AggregatesTest {
  private static final AttributeReference SMALL = Trees.attribute("i", IntegerType$.MODULE$, true);
  private static final AttributeReference BIG = Trees.attribute("l", LongType$.MODULE$, true);
  private static final AttributeReference REAL = Trees.attribute("f", DoubleType$.MODULE$, true);
  private static final AttributeReference PRICE =
      Trees.attribute("price", new DecimalType(15, 2), true);
  private static final AttributeReference RATE =
      Trees.attribute("rate", new DecimalType(15, 2), true);
  private static final AttributeReference ADDRESS =
      Trees.attribute("_rowaddr", LongType$.MODULE$, false);
  private static final List<AttributeReference> COLUMNS =
      List.of(SMALL, BIG, REAL, PRICE, RATE, ADDRESS);

  private static Partials partials(boolean ansi, Expression... grouping) {
    Partials partials = new Partials(COLUMNS, List.of(grouping), ansi);
    assertTrue(partials.groups());
    return partials;
  }

  private static List<Expression> rewritten(Partials partials, AggregateFunction... functions) {
    return partials.rewriteAll(
        java.util.Arrays.stream(functions).map(f -> f.toAggregateExpression()).toList());
  }

  private static Count count(Expression child) {
    return new Count(Scala.seqOf(child));
  }

  @Test
  void countAndMinimumAreRequests() {
    Partials partials = partials(true);
    assertNotNull(rewritten(partials, count(SMALL), new Min(BIG), new Max(BIG)));
    assertEquals(
        "[{\"fn\":\"count\",\"column\":\"i\",\"name\":\"__agg_0\"},"
            + "{\"fn\":\"min\",\"column\":\"l\",\"name\":\"__agg_1\"},"
            + "{\"fn\":\"max\",\"column\":\"l\",\"name\":\"__agg_2\"}]",
        Json.write(partials.calls));
  }

  @Test
  void equalRequestsShareOneColumn() {
    Partials partials = partials(true);
    rewritten(partials, new Min(BIG), new Min(BIG), count(BIG));
    assertEquals(2, partials.calls.size());
    assertEquals(2, partials.attributes.size());
  }

  @Test
  void countOfARequiredColumnCountsRows() {
    AttributeReference required = Trees.attribute("id", LongType$.MODULE$, false);
    Partials partials = new Partials(List.of(required), List.of(), true);
    rewritten(partials, count(required));
    assertEquals("count_star", partials.calls.get(0).text("fn"));
  }

  @Test
  void floatsAndRowColumnsNeedTheRows() {
    assertNull(rewritten(partials(true), new Sum(REAL)));
    assertNull(rewritten(partials(true), new Min(REAL)));
    assertNull(rewritten(partials(true), count(ADDRESS)));
  }

  @Test
  void sumOfBigintNeedsAnsi() {
    assertNotNull(rewritten(partials(true), new Sum(BIG)));
    assertNull(rewritten(partials(false), new Sum(BIG)));
    assertNotNull(rewritten(partials(false), new Sum(SMALL)));
  }

  @Test
  void groupsOfDecimalsNeedTheRows() {
    Partials partials = new Partials(COLUMNS, List.of(PRICE), true);
    assertEquals(false, partials.groups());
    assertEquals("group", partials(true, BIG).calls.get(0).text("fn"));
  }

  @Test
  void averageOfIntegersLimitsTheRows() {
    Partials partials = partials(true);
    assertNotNull(rewritten(partials, new Average(SMALL)));
    assertEquals((1L << 53) / (1L << 31), partials.mostRows);
    assertNull(rewritten(partials(true), new Average(BIG)));
  }

  @Test
  void productOfDecimalsAddsDigits() {
    Terms terms = new Terms(COLUMNS, true);
    Terms.Term term = terms.of(new Multiply(PRICE, RATE));
    assertEquals(31, term.digits());
    assertEquals(4, term.scale());
    assertEquals(
        "{\"op\":\"*\",\"args\":[{\"op\":\"col\",\"name\":\"price\"},"
            + "{\"op\":\"col\",\"name\":\"rate\"}]}",
        Json.write(term.json()));
  }

  @Test
  void castThatRoundsHasNoTerm() {
    Terms terms = new Terms(COLUMNS, true);
    Expression narrower = new Cast(PRICE, new DecimalType(15, 1), scala.Option.empty(), null);
    assertNull(terms.of(narrower));
    Expression wider = new Cast(PRICE, new DecimalType(20, 4), scala.Option.empty(), null);
    assertEquals(4, terms.of(wider).scale());
  }

  @Test
  void tooManyDigitsHaveNoTerm() {
    Expression product = new Multiply(PRICE, RATE);
    assertNull(new Terms(COLUMNS, false).of(new Multiply(product, PRICE)));
    assertNull(new Terms(List.of(), true).of(PRICE));
  }
}
