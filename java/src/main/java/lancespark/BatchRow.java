package lancespark;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarBatchRow;

/**
 * A row of a columnar batch that shows the batch to a writer. {@link #advance} moves the object to
 * the next row. The batch stays valid until the row after its last row is requested.
 */
final class BatchRow extends GenericInternalRow {
  private static final long serialVersionUID = 1L;

  private final transient ColumnVector[] columns;
  private final transient ColumnarBatchRow row;
  private final StructType schema;
  private final int rows;

  /** Bytes of each row of the batch. */
  final int bytes;

  /** Stands before the first row. The columns are at `positions` of the batch. */
  BatchRow(ColumnarBatch batch, int[] positions, StructType schema, int bytes) {
    this.schema = schema;
    this.bytes = bytes;
    rows = batch.numRows();
    columns = Arrays.stream(positions).mapToObj(batch::column).toArray(ColumnVector[]::new);
    row = new ColumnarBatchRow(columns);
    row.rowId = -1;
  }

  void advance() {
    row.rowId++;
  }

  /** Position of the row in its batch. */
  int position() {
    return row.rowId;
  }

  boolean isLast() {
    return row.rowId + 1 >= rows;
  }

  /** Moves to a row of the batch, and returns its values. */
  SpecializedGetters at(int position) {
    row.rowId = position;
    return row;
  }

  ColumnVector column(int number) {
    return columns[number];
  }

  /** Returns the values of the row as it stands. */
  @Override
  public Object[] values() {
    Object[] values = new Object[columns.length];
    for (int i = 0; i < values.length; i++) values[i] = genericGet(i);
    return values;
  }

  @Override
  public GenericInternalRow copy() {
    return new GenericInternalRow(values());
  }

  @Override
  public int numFields() {
    return columns.length;
  }

  @Override
  public Object genericGet(int number) {
    return row.isNullAt(number) ? null : row.get(number, schema.fields()[number].dataType());
  }
}
