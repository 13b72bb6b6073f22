package lancespark;

import java.util.Arrays;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BitVectorHelper;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.Platform;

/**
 * The columns of an Arrow batch for Python. Takes the place of Spark's writer of the struct of all
 * columns: a {@link BatchRow} adds its values with the other rows of its batch, column by column.
 * Spark's writers of the columns add other rows.
 */
final class ArrowColumns extends ArrowFieldWriter {
  private final StructVector struct;
  private final ArrowFieldWriter[] columns;
  private final DataType[] types;
  private BatchRow row;
  private int firstPosition;

  /** Takes Spark's writer of the struct. */
  ArrowColumns(ArrowFieldWriter struct, StructType schema) {
    this.struct = (StructVector) struct.valueVector();
    columns = (ArrowFieldWriter[]) SparkRelease.field(struct, "children");
    types = Arrays.stream(schema.fields()).map(StructField::dataType).toArray(DataType[]::new);
  }

  /** Tells whether columns have only values of fixed width, so that rows have equal sizes. */
  static boolean canCopy(StructType schema) {
    return schema.length() > 0
        && Arrays.stream(schema.fields()).allMatch(field -> width(field.dataType()) > 0);
  }

  /** Returns the bytes of a row of columns of fixed width. */
  static int rowBytes(StructType schema) {
    return Arrays.stream(schema.fields()).mapToInt(field -> width(field.dataType())).sum();
  }

  /** Returns the bytes of a value, or 0 for values of any width. */
  private static int width(DataType type) {
    if (type instanceof BooleanType || type instanceof ByteType) return 1;
    if (type instanceof ShortType) return 2;
    if (isInt(type) || type instanceof FloatType) return 4;
    if (isLong(type) || type instanceof DoubleType) return 8;
    return type instanceof DecimalType ? 16 : 0;
  }

  private static boolean isInt(DataType type) {
    return type instanceof IntegerType
        || type instanceof DateType
        || type instanceof YearMonthIntervalType;
  }

  private static boolean isLong(DataType type) {
    return type instanceof LongType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType
        || type instanceof DayTimeIntervalType;
  }

  @Override
  public ValueVector valueVector() {
    return struct;
  }

  @Override
  public void setNull() {
    throw new IllegalStateException("A row is never NULL.");
  }

  @Override
  public void setValue(SpecializedGetters row, int ordinal) {
    for (int i = 0; i < columns.length; i++) columns[i].write(row, i);
  }

  /** Adds a row. Spark passes the row itself. */
  @Override
  public void write(SpecializedGetters next, int ordinal) {
    if (next instanceof BatchRow batchRow) {
      if (row == null) firstPosition = batchRow.position();
      row = batchRow;
      if (row.isLast()) flush();
    } else {
      setValue(next, ordinal);
    }
    count_$eq(count() + 1);
  }

  /** Copies the values of the rows whose batch the writer has seen, before the batch changes. */
  private void flush() {
    if (row == null) return;
    int rows = row.position() - firstPosition + 1;
    for (int i = 0; i < columns.length; i++) append(i, rows);
    row = null;
  }

  private void append(int number, int rows) {
    ArrowFieldWriter column = columns[number];
    ColumnVector values = row.column(number);
    if (types[number] instanceof DecimalType || !isReadable(values)) {
      int end = firstPosition + rows;
      for (int i = firstPosition; i < end; i++) column.write(row.at(i), number);
      return;
    }
    int start = column.count();
    BaseFixedWidthVector target = (BaseFixedWidthVector) column.valueVector();
    while (target.getValueCapacity() < start + rows) target.reAlloc();
    copyValues(types[number], values, firstPosition, rows, target.getDataBuffer(), start);
    copyValidity(values, firstPosition, rows, target.getValidityBuffer(), start);
    column.count_$eq(start + rows);
  }

  /** Tells whether every position of a vector may be read. A NULL may have no value to read. */
  private static boolean isReadable(ColumnVector values) {
    return !values.hasNull()
        || (values instanceof WritableColumnVector writable && !writable.isAllNull());
  }

  private static void copyValues(
      DataType type, ColumnVector values, int first, int rows, ArrowBuf target, int start) {
    if (type instanceof BooleanType) {
      boolean[] bits = values.getBooleans(first, rows);
      for (int i = 0; i < rows; i++) {
        BitVectorHelper.setValidityBit(target, start + i, bits[i] ? 1 : 0);
      }
    } else if (type instanceof ByteType) {
      byte[] bytes = values.getBytes(first, rows);
      copy(bytes, Platform.BYTE_ARRAY_OFFSET, rows, 1, target, start);
    } else if (type instanceof ShortType) {
      short[] shorts = values.getShorts(first, rows);
      copy(shorts, Platform.SHORT_ARRAY_OFFSET, rows, 2, target, start);
    } else if (type instanceof FloatType) {
      float[] floats = values.getFloats(first, rows);
      copy(floats, Platform.FLOAT_ARRAY_OFFSET, rows, 4, target, start);
    } else if (type instanceof DoubleType) {
      double[] doubles = values.getDoubles(first, rows);
      copy(doubles, Platform.DOUBLE_ARRAY_OFFSET, rows, 8, target, start);
    } else if (isInt(type)) {
      copy(values.getInts(first, rows), Platform.INT_ARRAY_OFFSET, rows, 4, target, start);
    } else {
      copy(values.getLongs(first, rows), Platform.LONG_ARRAY_OFFSET, rows, 8, target, start);
    }
  }

  private static void copy(
      Object values, int offset, int rows, int width, ArrowBuf target, int start) {
    long address = target.memoryAddress() + (long) start * width;
    Platform.copyMemory(values, offset, null, address, (long) rows * width);
  }

  private static void copyValidity(
      ColumnVector values, int first, int rows, ArrowBuf target, int start) {
    if (!values.hasNull()) {
      setBits(target, start, start + rows);
      return;
    }
    for (int i = 0; i < rows; i++) {
      BitVectorHelper.setValidityBit(target, start + i, values.isNullAt(first + i) ? 0 : 1);
    }
  }

  /** Sets bits from `start` to `end`, and maybe the next bits of the last byte. */
  private static void setBits(ArrowBuf target, int start, int end) {
    int next = start;
    for (; next < end && next % 8 != 0; next++) BitVectorHelper.setBit(target, next);
    if (next < end) target.setOne((long) next / 8, (end - next + 7L) / 8);
  }

  @Override
  public void finish() {
    flush();
    if (count() > 0) {
      struct.setIndexDefined(count() - 1);
      setBits(struct.getValidityBuffer(), 0, count());
    }
    super.finish();
    for (ArrowFieldWriter column : columns) column.finish();
  }

  @Override
  public void reset() {
    super.reset();
    for (ArrowFieldWriter column : columns) column.reset();
  }
}
