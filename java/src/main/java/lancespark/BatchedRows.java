package lancespark;

import java.io.IOException;
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
 * UnsafeRow is one number of the row. Here, Spark therefore sees no limit, and the rows end a batch
 * themselves: at the limit, {@link #hasNext} answers false once. Spark then sends the batch and
 * asks again. A task fails if Spark has not asked for all rows, so that a release with another loop
 * cannot lose rows.
 */
final class BatchedRows implements Iterator<InternalRow> {
  private final StructType schema;
  private final SQLConf settings = new ReadOnlySQLConf(TaskContext.get());
  private final long limit = settings.arrowMaxBytesPerBatch();
  private final Function0<Boolean> hasRow;
  private final Function0<InternalRow> nextRow;
  private UnsafeProjection projection;
  private long bytes;
  private boolean exhausted;

  BatchedRows(Iterator<InternalRow> rows, StructType schema) {
    this.schema = schema;
    hasRow = rows::hasNext;
    nextRow = rows::next;
  }

  /** Passes the rows to a function of Spark, which sends them to Python. */
  void send(Sender spark) {
    withoutLimit(
        () -> {
          try {
            spark.send(this);
          } catch (IOException error) {
            throw Errors.thrown(error);
          }
          return null;
        });
    check();
  }

  /** Checks at the end of the task that Spark has sent all rows. */
  void check(TaskContext task) {
    task.addTaskCompletionListener(
        end -> {
          if (!end.isFailed() && !end.isInterrupted()) check();
        });
  }

  private void check() {
    if (!exhausted) {
      throw new IllegalStateException(
          "Spark "
              + package$.MODULE$.SPARK_VERSION()
              + " has not sent all rows of this task to Python. Nothing of the task is kept. Use a"
              + " release of Spark that lance-spark supports, and report this error.");
    }
  }

  /** Calls a function of Spark to make batches for Python without a limit of bytes. */
  static <T> T withoutLimit(Function0<T> spark) {
    return SQLConf.withExistingConf(new Unlimited(), spark);
  }

  /** Calls a function of Spark with the settings of the task. */
  static <T> T withLimit(Function0<T> spark) {
    return SQLConf.withExistingConf(new ReadOnlySQLConf(TaskContext.get()), spark);
  }

  /** Reads on with the settings of the task, because the rows may come from Python as well. */
  @Override
  public boolean hasNext() {
    if (bytes >= limit) {
      bytes = 0;
      return false;
    }
    exhausted = !SQLConf.withExistingConf(settings, hasRow);
    return !exhausted;
  }

  @Override
  public InternalRow next() {
    UnsafeRow row = unsafe(SQLConf.withExistingConf(settings, nextRow));
    bytes += row.getSizeInBytes();
    return row;
  }

  private UnsafeRow unsafe(InternalRow row) {
    if (row instanceof UnsafeRow unsafe) return unsafe;
    if (projection == null) projection = UnsafeProjection.create(schema);
    return projection.apply(row);
  }

  /** A function of Spark. */
  interface Sender {
    void send(Iterator<InternalRow> rows) throws IOException;
  }

  private static final class Unlimited extends ReadOnlySQLConf {
    private static final long serialVersionUID = 1L;

    Unlimited() {
      super(TaskContext.get());
    }

    @Override
    public long arrowMaxBytesPerBatch() {
      return Integer.MAX_VALUE;
    }
  }
}
