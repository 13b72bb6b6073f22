package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Rows in batches, as a loop of Spark asks for them. */
class BatchedRowsTest {
  private static final String LIMIT = "spark.sql.execution.arrow.max";

  @BeforeEach
  void startTask() {
    TaskContext$.MODULE$.setTaskContext(TaskContext$.MODULE$.empty());
  }

  @AfterEach
  void endTask() {
    TaskContext$.MODULE$.unset();
  }

  private static void limit(String name, int value) {
    TaskContext.get().getLocalProperties().setProperty(LIMIT + name, String.valueOf(value));
  }

  /** Rows of 16 bytes each. */
  private static BatchedRows rows(int count) {
    return rows(count, true);
  }

  private static BatchedRows rows(int count, boolean isNarrow) {
    UnsafeRow row = new UnsafeRow(1);
    row.pointTo(new byte[16], 16);
    List<InternalRow> rows = Collections.nCopies(count, row);
    return new BatchedRows(rows.iterator(), new StructType(), isNarrow);
  }

  private static int readBatch(Iterator<InternalRow> rows) {
    int count = 0;
    for (; rows.hasNext(); count++) rows.next();
    return count;
  }

  private static List<Integer> batches(int count) {
    BatchedRows rows = rows(count);
    List<Integer> batches = new ArrayList<>();
    for (int size = readBatch(rows); size > 0; size = readBatch(rows)) batches.add(size);
    rows.check();
    return batches;
  }

  @Test
  void aBatchEndsAtTheLimitOfBytes() {
    limit("BytesPerBatch", 32);
    assertEquals(List.of(2, 2, 1), batches(5));
  }

  @Test
  void aBatchEndsAtTheSessionsLimitOfRows() {
    limit("RecordsPerBatch", 3);
    assertEquals(List.of(3, 2), batches(5));
    limit("BytesPerBatch", 32);
    assertEquals(List.of(2, 2, 1), batches(5));
    limit("RecordsPerBatch", 0);
    limit("BytesPerBatch", 1 << 24);
    assertEquals(List.of(200_000), batches(200_000));
  }

  @Test
  void batchesOfNarrowRowsAreLongerThanSparksLimit() {
    assertEquals(List.of(131_072, 18_928), batches(150_000));
    assertEquals(10_000, readBatch(rows(150_000, false)), "rows with lists, and of a MERGE");
  }

  @Test
  void aLoopThatEndsWithTheFirstBatchIsAnError() {
    limit("BytesPerBatch", 32);
    BatchedRows rows = rows(5);
    readBatch(rows);
    var error = assertThrows(IllegalStateException.class, rows::check);
    assertTrue(error.getMessage().contains("has not sent all rows"));
  }
}
