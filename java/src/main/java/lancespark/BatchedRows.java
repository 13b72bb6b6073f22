package lancespark;

import java.util.Iterator;
import org.apache.spark.TaskContext;
import org.apache.spark.package$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.internal.ReadOnlySQLConf;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.Function0;

/**
 * The rows of a task for Python, in Arrow batches of a limited sum of row sizes.
 *
 * <p>Spark limits a batch by spark.sql.execution.arrow.maxBytesPerBatch: after every row, it adds
 * up the sizes of all vectors, which takes longer than the rest of a narrow write. The size of an
 * UnsafeRow is one number of the row. Here, Spark therefore sees no limits, and the rows end a
 * batch themselves: at a limit, {@link #hasNext} answers false once. Spark then sends the batch and
 * asks again. A task fails if Spark has not asked for all rows, so that a release with another loop
 * cannot lose rows.
 */
final class BatchedRows implements Iterator<InternalRow> {
  private static final String ROW_LIMIT = "spark.sql.execution.arrow.maxRecordsPerBatch";
  private static final int MAX = Integer.MAX_VALUE;

  /** Batches of 10,000 narrow rows, Spark's default, cost Python more than their values. */
  private static final long LEAST_BYTES = 2 << 20;

  private final Iterator<InternalRow> rows;
  private final StructType schema;
  private final long maxBytes;
  private final int maxRows;

  /** Bytes of a batch that may end by its number of rows. */
  private final long leastBytes;

  private UnsafeProjection projection;
  private long bytes;
  private int count;
  private boolean exhausted;

  /**
   * Ends batches of rows.
   *
   * @param isNarrow whether Python keeps only the values of the rows. Columns of lists, and the
   *     rows that a MERGE reads beside its source, need memory by the number of rows.
   */
  BatchedRows(Iterator<InternalRow> rows, StructType schema, boolean isNarrow) {
    this.rows = rows;
    this.schema = schema;
    TaskContext task = TaskContext.get();
    SQLConf settings = new ReadOnlySQLConf(task);
    maxBytes = settings.arrowMaxBytesPerBatch();
    maxRows = settings.arrowMaxRecordsPerBatch() > 0 ? settings.arrowMaxRecordsPerBatch() : MAX;
    leastBytes = isNarrow && task.getLocalProperty(ROW_LIMIT) == null ? LEAST_BYTES : 0;
  }

  /** Returns rows that come with the settings of the task, also inside of `withoutLimit`. */
  static Iterator<InternalRow> withSettings(Iterator<InternalRow> rows) {
    SQLConf settings = new ReadOnlySQLConf(TaskContext.get());
    Function0<Boolean> hasRow = rows::hasNext;
    Function0<InternalRow> nextRow = rows::next;
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return SQLConf.withExistingConf(settings, hasRow);
      }

      @Override
      public InternalRow next() {
        return SQLConf.withExistingConf(settings, nextRow);
      }
    };
  }

  /** Checks at the end of the task that Spark has sent all rows. */
  void check(TaskContext task) {
    task.addTaskCompletionListener(
        end -> {
          if (!end.isFailed() && !end.isInterrupted()) check();
        });
  }

  /** Checks that Spark has sent all rows. */
  void check() {
    if (!exhausted) {
      throw new IllegalStateException(
          "Spark "
              + package$.MODULE$.SPARK_VERSION()
              + " has not sent all rows of this task to Python. Nothing of the task is kept. Use a"
              + " release of Spark that lance-spark supports, and report this error.");
    }
  }

  /** Calls a function of Spark to make batches for Python without limits. */
  static <T> T withoutLimit(Function0<T> spark) {
    return SQLConf.withExistingConf(new Unlimited(), spark);
  }

  /** Calls a function of Spark with the settings of the task. */
  static <T> T withLimit(Function0<T> spark) {
    return SQLConf.withExistingConf(new ReadOnlySQLConf(TaskContext.get()), spark);
  }

  @Override
  public boolean hasNext() {
    if (isFull()) {
      bytes = 0;
      count = 0;
      return false;
    }
    exhausted = !rows.hasNext();
    return !exhausted;
  }

  private boolean isFull() {
    return bytes >= maxBytes || (count >= maxRows && bytes >= leastBytes);
  }

  @Override
  public InternalRow next() {
    InternalRow row = rows.next();
    count++;
    if (row instanceof BatchRow batchRow) {
      bytes += batchRow.bytes;
      return row;
    }
    UnsafeRow unsafe = unsafe(row);
    bytes += unsafe.getSizeInBytes();
    return unsafe;
  }

  private UnsafeRow unsafe(InternalRow row) {
    if (row instanceof UnsafeRow unsafe) return unsafe;
    if (projection == null) projection = UnsafeProjection.create(schema);
    return projection.apply(row);
  }

  private static final class Unlimited extends ReadOnlySQLConf {
    private static final long serialVersionUID = 1L;

    Unlimited() {
      super(TaskContext.get());
    }

    @Override
    public long arrowMaxBytesPerBatch() {
      return MAX;
    }

    @Override
    public int arrowMaxRecordsPerBatch() {
      return MAX;
    }
  }
}
