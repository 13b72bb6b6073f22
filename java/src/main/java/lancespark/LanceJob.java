package lancespark;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.PropertyNamingStrategies.SnakeCaseStrategy;
import com.fasterxml.jackson.databind.annotation.JsonNaming;
import java.util.List;
import java.util.Objects;
import org.apache.spark.util.kvstore.KVIndex;

/**
 * The state of a job, sent by lance_spark/jobs/web_ui.py. Event logs hold jobs of other releases of
 * this package: unknown fields are ignored, and absent fields are 0 or empty. Times are
 * milliseconds since the epoch; a time of 0 is absent.
 */
@JsonIgnoreProperties(ignoreUnknown = true)
@JsonNaming(SnakeCaseStrategy.class)
public record LanceJob(
    String jobId,
    String jobType,
    String status,
    String table,
    String tableUri,
    List<String> columns,
    String udfName,
    long launchedAt,
    long updatedAt,
    long completedAt,
    long readVersion,
    long commits,
    long lastVersion,
    long rowsSelected,
    long rowsComputed,
    long rowsFromCheckpoint,
    long rowsSkipped,
    long rowsFailed,
    long rowsCarried,
    long rowsRecomputed,
    long rowsNulled,
    long fragmentsTotal,
    long fragmentsDone,
    long retries,
    List<RowError> errors) {

  static final String AGE = "age";
  private static final long AFTER_ALL_TIMES = 1L << 60;

  /** Milliseconds without a sign until a job counts as dead: nine heartbeats of its driver. */
  private static final long SILENCE = 90_000;

  /** A failed row. An address of -1 means that only the fragment is known. */
  @JsonIgnoreProperties(ignoreUnknown = true)
  @JsonNaming(SnakeCaseStrategy.class)
  public record RowError(
      long fragmentId, long rowAddress, long tableVersion, String outcome, String errorType) {
    public RowError {
      outcome = orEmpty(outcome);
      errorType = orEmpty(errorType);
    }
  }

  public LanceJob {
    jobId = orEmpty(jobId);
    jobType = orEmpty(jobType);
    status = orEmpty(status);
    table = orEmpty(table);
    tableUri = orEmpty(tableUri);
    udfName = orEmpty(udfName);
    columns = withoutNull(columns);
    errors = withoutNull(errors);
  }

  /** Identity in a store: another run of a job replaces the earlier run. */
  @KVIndex
  String key() {
    return tableUri + '\n' + jobId;
  }

  /** Order in a store: ended jobs by their start, and then running jobs by their start. */
  @KVIndex(AGE)
  long age() {
    return isRunning() ? AFTER_ALL_TIMES + launchedAt : launchedAt;
  }

  boolean isRunning() {
    return status.equals("RUNNING") || status.equals("PENDING");
  }

  /** Returns the number of selected rows without further work. */
  long rowsDone() {
    return rowsComputed + rowsFromCheckpoint + rowsSkipped;
  }

  /** Returns the computed rows per second, or 0 before the first row. */
  double rate() {
    double seconds = ((completedAt > 0 ? completedAt : updatedAt) - launchedAt) / 1000.0;
    return seconds > 0 ? rowsComputed / seconds : 0;
  }

  /** Returns the job as it shows at a moment. A running job without heartbeats counts as dead. */
  LanceJob at(long moment) {
    return isRunning() && moment - updatedAt > SILENCE ? dead(0) : this;
  }

  /** Returns the job without its driver. An end of 0 is unknown. */
  LanceJob dead(long end) {
    return new LanceJob(
        jobId,
        jobType,
        "DEAD",
        table,
        tableUri,
        columns,
        udfName,
        launchedAt,
        updatedAt,
        end,
        readVersion,
        commits,
        lastVersion,
        rowsSelected,
        rowsComputed,
        rowsFromCheckpoint,
        rowsSkipped,
        rowsFailed,
        rowsCarried,
        rowsRecomputed,
        rowsNulled,
        fragmentsTotal,
        fragmentsDone,
        retries,
        errors);
  }

  private static <T> List<T> withoutNull(List<T> items) {
    return items == null ? List.of() : items.stream().filter(Objects::nonNull).toList();
  }

  private static String orEmpty(String text) {
    return text == null ? "" : text;
  }
}
