package lancespark;

import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.function.Supplier;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonUtils$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceWriteInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * Spark's driver side of a Python data source. The gateway plans and commits writes, in place of a
 * new Python process for each plan and each commit.
 */
final class GatewayWrites extends UserDefinedPythonDataSource {
  private static final long serialVersionUID = 1L;

  /** The interpreter of tasks, as for Spark's own data sources. */
  private static PythonFunction interpreter;

  private final transient Json write;
  private final transient String query;
  private final transient boolean updates;
  private final transient Supplier<UserDefinedPythonDataSource> ofStreams;

  /** The numbers of the commit; empty before. */
  private transient volatile Json committed = new Json();

  /** The writer of the latest micro-batch. */
  private transient String batchWriter;

  /**
   * Takes the planner rule's facts about the write, or null; the id of the streaming query, or
   * null; whether its output mode is `update`; and Spark's own data source.
   */
  GatewayWrites(
      Json write, String query, boolean updates, Supplier<UserDefinedPythonDataSource> ofStreams) {
    super(interpreter());
    this.write = write;
    this.query = query;
    this.updates = updates;
    this.ofStreams = ofStreams;
  }

  /** Spark starts the interpreter to learn its version. */
  private static synchronized PythonFunction interpreter() {
    if (interpreter == null) interpreter = PythonUtils$.MODULE$.createPythonFunction(new byte[0]);
    return interpreter;
  }

  @Override
  public PythonDataSourceCreationResult createDataSourceInPython(
      String shortName, CaseInsensitiveStringMap options, Option<StructType> schema) {
    return ofStreams.get().createDataSourceInPython(shortName, options, schema);
  }

  /** Returns the function of the tasks and the writer: lance_spark/sql/writes.py. */
  @Override
  public PythonDataSourceWriteInfo createWriteInfoInPython(
      String shortName,
      StructType rows,
      CaseInsensitiveStringMap options,
      boolean overwrite,
      boolean isStream) {
    Json arguments =
        new Json()
            .with("options", options.asCaseSensitiveMap())
            .with("schema", rows.json())
            .with("overwrite", overwrite);
    Json planned =
        isStream
            ? LanceSource.ask(
                "plan_batch", arguments.with("query_id", query).with("updates", updates))
            : LanceSource.ask("plan_write", arguments.with("write", write));
    batchWriter = isStream ? planned.text("writer") : null;
    Base64.Decoder decoder = Base64.getDecoder();
    return new PythonDataSourceWriteInfo(
        decoder.decode(planned.text("function")), decoder.decode(planned.text("writer")));
  }

  /** Commits or aborts a write. A task without a message has failed. */
  @Override
  public void commitWriteInPython(byte[] writer, WriterCommitMessage[] messages, boolean abort) {
    String text = Base64.getEncoder().encodeToString(writer);
    Json arguments = new Json().with("writer", text).with("messages", encoded(messages));
    if (abort) LanceSource.ask("abort_write", arguments);
    else committed = LanceSource.ask("commit_write", arguments);
  }

  /** Returns the numbers of the commit; empty before the commit, and without a version. */
  Json committed() {
    return committed;
  }

  /** Commits or aborts the latest micro-batch with a command. */
  void endBatch(String command, long batch, WriterCommitMessage[] messages) {
    if (batchWriter == null && command.equals("abort_batch")) return; // The plan failed.
    if (batchWriter == null) {
      throw new IllegalStateException(
          "Batch " + batch + " of the query " + query + " has no plan.");
    }
    Json arguments =
        new Json()
            .with("writer", batchWriter)
            .with("messages", encoded(messages))
            .with("batch", batch);
    LanceSource.ask(command, arguments, SparkSession.active());
  }

  /** Returns the answers of tasks; null for a failed task. */
  private static List<String> encoded(WriterCommitMessage[] messages) {
    List<String> texts = new ArrayList<>();
    for (WriterCommitMessage message : messages) {
      PythonWriterCommitMessage answer = (PythonWriterCommitMessage) message;
      texts.add(
          answer == null ? null : Base64.getEncoder().encodeToString(answer.pickledMessage()));
    }
    return texts;
  }

  /** Tasks get Spark's own class. */
  private Object writeReplace() {
    return new UserDefinedPythonDataSource(dataSourceCls());
  }
}
