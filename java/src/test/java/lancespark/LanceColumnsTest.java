package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.junit.jupiter.api.Test;
import scala.jdk.javaapi.CollectionConverters;

/** Rows of columnar batches on the way to a write. */
class LanceColumnsTest {
  private static final StructType SCHEMA = new StructType().add("a", DataTypes.IntegerType);

  /** A batch of a source that leaves the end of its vectors to the reader. */
  private static final class Freeable extends ColumnarBatch {
    private final List<Integer> freed;
    private final int number;

    Freeable(int number, int rows, List<Integer> freed) {
      super(new ColumnVector[] {new OnHeapColumnVector(1, DataTypes.IntegerType)}, rows);
      this.number = number;
      this.freed = freed;
    }

    @Override
    public void closeIfFreeable() {
      freed.add(number);
    }
  }

  @Test
  void eachBatchIsFreedOnceAfterItsLastRow() {
    List<Integer> freed = new ArrayList<>();
    int[] sizes = {2, 0, 1};
    List<ColumnarBatch> input =
        IntStream.range(0, sizes.length)
            .<ColumnarBatch>mapToObj(i -> new Freeable(i, sizes[i], freed))
            .toList();
    var rows =
        new LanceColumns.BatchRows(
            CollectionConverters.asScala(input.iterator()), new int[] {0}, SCHEMA);
    List<Integer> freedAtRow = new ArrayList<>();
    while (rows.hasNext()) {
      rows.next();
      freedAtRow.add(freed.size());
    }
    assertFalse(rows.hasNext());
    assertEquals(List.of(0, 0, 2), freedAtRow);
    assertEquals(List.of(0, 1, 2), freed);
  }
}
