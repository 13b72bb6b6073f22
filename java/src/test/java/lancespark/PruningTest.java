package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;
import org.junit.jupiter.api.Test;
import scala.Option;

/** Fields of structs, and leading elements of vectors, in a scan. */
final class PruningTest {
  private static final StructType INNER =
      new StructType().add("a", IntegerType$.MODULE$, false).add("b", StringType$.MODULE$, true);
  private static final AttributeReference STRUCT =
      Trees.attribute("s", new StructType().add("x", INNER, false).add("y", INNER, true), true);
  private static final AttributeReference VECTOR =
      Trees.attribute("v", new ArrayType(FloatType$.MODULE$, true), true);

  private static GetStructField field(Expression struct, int ordinal) {
    return new GetStructField(struct, ordinal, Option.empty());
  }

  private static Literal number(int value) {
    return new Literal(value, IntegerType$.MODULE$);
  }

  @Test
  void onlyExtractedFieldsStay() {
    Expression used = field(field(STRUCT, 1), 0);
    List<AttributeReference> narrowed = Nested.narrow(List.of(STRUCT), List.of(used));
    assertEquals("struct<y:struct<a:int>>", narrowed.get(0).dataType().catalogString());
    Expression rewritten = Nested.over(narrowed).rewrite(used);
    assertEquals(0, ((GetStructField) ((GetStructField) rewritten).child()).ordinal());
    assertEquals(used.dataType(), rewritten.dataType());
  }

  @Test
  void requiredFieldOfANullableStructBecomesNullable() {
    Expression used = field(field(STRUCT, 0), 0);
    StructType type = (StructType) Nested.narrow(List.of(STRUCT), List.of(used)).get(0).dataType();
    assertTrue(((StructType) type.fields()[0].dataType()).fields()[0].nullable());
  }

  @Test
  void testForNullReadsTheWholeStruct() {
    List<AttributeReference> columns = List.of(STRUCT);
    Expression extracted = field(STRUCT, 0);
    assertSame(columns, Nested.narrow(columns, List.of(extracted, new IsNull(STRUCT))));
    List<AttributeReference> narrowed =
        Nested.narrow(columns, List.of(new IsNull(field(STRUCT, 0))));
    assertEquals("struct<x:struct<a:int,b:string>>", narrowed.get(0).dataType().catalogString());
  }

  @Test
  void duplicateFieldNamesReadTheWholeStruct() {
    StructType twice =
        new StructType().add("a", IntegerType$.MODULE$).add("a", IntegerType$.MODULE$);
    List<AttributeReference> columns = List.of(Trees.attribute("s", twice, true));
    assertSame(columns, Nested.narrow(columns, List.of(field(columns.get(0), 0))));
  }

  @Test
  void largestLeadingElementCounts() {
    Elements elements = new Elements();
    elements.use(
        List.of(
            new GetArrayItem(VECTOR, number(0), false),
            new GetArrayItem(VECTOR, number(3), false),
            new IsNull(VECTOR)));
    assertEquals(Map.of("v", 4), elements.requests(List.of(VECTOR)));
  }

  @Test
  void otherUsesReadTheWholeVector() {
    for (Expression use :
        List.of(VECTOR, new GetArrayItem(VECTOR, number(-1), false), new IsNull(STRUCT))) {
      Elements elements = new Elements();
      elements.use(List.of(new GetArrayItem(VECTOR, number(0), false), use));
      boolean whole = use != VECTOR && use instanceof IsNull;
      assertEquals(whole ? 1 : 0, elements.requests(List.of(VECTOR)).size());
    }
  }

  @Test
  void sizeOfAShortenedVectorIsTheSizeOfItsType() {
    Elements elements = new Elements();
    Expression size = new Size(VECTOR, false);
    elements.use(List.of(size));
    assertSame(size, elements.rewrite(size));
    elements.recordShortened(List.of(VECTOR), Map.of("v", 768));
    If rewritten = (If) elements.rewrite(size);
    assertEquals(new Literal(768, IntegerType$.MODULE$), rewritten.falseValue());
    assertEquals(new Literal(null, IntegerType$.MODULE$), rewritten.trueValue());
  }
}
