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
  private static final String LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch";

  @BeforeEach
  void startTask() {
    TaskContext task = TaskContext$.MODULE$.empty();
    task.getLocalProperties().setProperty(LIMIT, "32");
    TaskContext$.MODULE$.setTaskContext(task);
  }

  @AfterEach
  void endTask() {
    TaskContext$.MODULE$.unset();
  }

  /** Five rows of 16 bytes each. */
  private static BatchedRows rows() {
    UnsafeRow row = new UnsafeRow(1);
    row.pointTo(new byte[16], 16);
    List<InternalRow> rows = Collections.nCopies(5, row);
    return new BatchedRows(rows.iterator(), new StructType());
  }

  private static int readBatch(Iterator<InternalRow> rows) {
    int count = 0;
    for (; rows.hasNext(); count++) rows.next();
    return count;
  }

  @Test
  void aBatchEndsAtTheLimit() {
    BatchedRows rows = rows();
    List<Integer> batches = new ArrayList<>();
    for (int count = readBatch(rows); count > 0; count = readBatch(rows)) batches.add(count);
    rows.check();
    assertEquals(List.of(2, 2, 1), batches);
  }

  @Test
  void aLoopThatEndsWithTheFirstBatchIsAnError() {
    BatchedRows rows = rows();
    readBatch(rows);
    var error = assertThrows(IllegalStateException.class, rows::check);
    assertTrue(error.getMessage().contains("has not sent all rows"));
  }
}
