package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.execution.vectorized.OffHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Columns in Arrow batches, compared with the same values from Spark's writer of rows. */
class ArrowColumnsTest {
  private static final StructType SCHEMA =
      StructType.fromDDL(
          "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h date,"
              + " i timestamp, j timestamp_ntz, k decimal(5,2), l decimal(18,3), m decimal(38,10),"
              + " n interval day to second, o interval year to month");

  private static final int[] POSITIONS = IntStream.range(0, SCHEMA.length()).toArray();
  private static final double[] NULL_SHARES = {0, 0.3, 1};

  private static StructType struct() {
    return new StructType().add("struct", SCHEMA, false);
  }

  private static ArrowWriter writer() {
    return ArrowWriter.create(struct(), "UTC", true, false);
  }

  private static ColumnarBatch batch(Random random, int rows) {
    ColumnVector[] columns = new ColumnVector[SCHEMA.length()];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = column(random, SCHEMA.fields()[i].dataType(), rows);
    }
    return new ColumnarBatch(columns, rows);
  }

  private static ColumnVector column(Random random, DataType type, int rows) {
    if (type instanceof IntegerType && random.nextInt(4) == 0) {
      ConstantColumnVector constant = new ConstantColumnVector(rows, type);
      if (random.nextBoolean()) constant.setNull();
      else constant.setInt(random.nextInt());
      return constant;
    }
    WritableColumnVector column =
        random.nextBoolean()
            ? new OnHeapColumnVector(rows, type)
            : new OffHeapColumnVector(rows, type);
    double nulls = NULL_SHARES[random.nextInt(NULL_SHARES.length)];
    for (int i = 0; i < rows; i++) {
      if (random.nextDouble() < nulls) column.putNull(i);
      else put(random, column, type, i);
    }
    return column;
  }

  private static void put(Random random, WritableColumnVector column, DataType type, int i) {
    if (type instanceof BooleanType) column.putBoolean(i, random.nextBoolean());
    else if (type instanceof ByteType) column.putByte(i, (byte) random.nextInt());
    else if (type instanceof ShortType) column.putShort(i, (short) random.nextInt());
    else if (type instanceof FloatType) column.putFloat(i, random.nextFloat());
    else if (type instanceof DoubleType) column.putDouble(i, random.nextDouble());
    else if (type instanceof DecimalType decimal) {
      column.putDecimal(i, decimal(random, decimal), decimal.precision());
    } else if (type instanceof IntegerType
        || type instanceof DateType
        || type instanceof YearMonthIntervalType) {
      column.putInt(i, random.nextInt());
    } else {
      column.putLong(i, random.nextLong());
    }
  }

  private static Decimal decimal(Random random, DecimalType type) {
    return Decimal.apply(random.nextInt(99_999), type.precision(), type.scale());
  }

  /** Texts of all batches that a writer makes of the rows. */
  private static List<String> batches(List<ColumnarBatch> input, int limit, boolean copies) {
    ArrowWriter writer = writer();
    if (copies) {
      ArrowFieldWriter[] fields = (ArrowFieldWriter[]) SparkRelease.field(writer, "fields");
      fields[0] = new ArrowColumns(fields[0], SCHEMA);
    }
    List<String> texts = new ArrayList<>();
    VectorSchemaRoot root = writer.root();
    try {
      int rows = 0;
      for (ColumnarBatch batch : input) {
        BatchRow row = new BatchRow(batch, POSITIONS, SCHEMA, 1);
        for (int i = 0; i < batch.numRows(); i++) {
          row.advance();
          writer.write(copies ? row : new GenericInternalRow(new Object[] {rowOf(batch, i)}));
          if (++rows % limit == 0) texts.add(text(writer));
        }
      }
      if (rows % limit != 0) texts.add(text(writer));
    } finally {
      root.close();
    }
    return texts;
  }

  private static InternalRow rowOf(ColumnarBatch batch, int i) {
    return batch.getRow(i);
  }

  private static String text(ArrowWriter writer) {
    writer.finish();
    String text = writer.root().contentToTSVString();
    int nulls = 0;
    for (var vector : writer.root().getFieldVectors()) nulls += vector.getNullCount();
    writer.reset();
    return nulls + text;
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 3, 8, 20, 1000, 5000})
  void columnsMakeTheBatchesOfRows(int limit) {
    Random random = new Random(limit);
    List<ColumnarBatch> input = new ArrayList<>();
    for (int rows : new int[] {1, 7, 8, 9, 64, 0, 333, 4096}) {
      if (rows > 0) input.add(batch(random, rows));
    }
    assertEquals(batches(input, limit, false), batches(input, limit, true));
  }

  @Test
  void rowsOfBatchesHaveTheirValues() {
    ColumnarBatch batch = batch(new Random(1), 50);
    BatchRow row = new BatchRow(batch, POSITIONS, SCHEMA, 1);
    for (int i = 0; i < 50; i++) {
      row.advance();
      InternalRow copy = row.copy();
      for (int k = 0; k < SCHEMA.length(); k++) {
        DataType type = SCHEMA.fields()[k].dataType();
        InternalRow expected = rowOf(batch, i);
        assertEquals(expected.isNullAt(k) ? null : expected.get(k, type), copy.get(k, type));
      }
      assertEquals(i == 49, row.isLast());
    }
  }

  @Test
  void onlyValuesOfFixedWidthAreCopied() {
    assertTrue(ArrowColumns.canCopy(SCHEMA));
    assertFalse(ArrowColumns.canCopy(SCHEMA.add("text", "string")));
    assertFalse(ArrowColumns.canCopy(SCHEMA.add("list", "array<int>")));
    assertFalse(ArrowColumns.canCopy(new StructType()));
  }
}
