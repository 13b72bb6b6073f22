package lancespark;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import org.apache.spark.SparkContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import py4j.Py4JException;

/**
 * The way to Python, which runs the commands of reads, of the catalog and of statements: the
 * program that drives the JVM, or else a process that the JVM starts.
 */
public final class PythonGateway {
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.sql");
  private static final long REFUSAL_SECONDS = 60;
  private static volatile Connection connection;
  private static Refused refused;

  /** The function for commands, and its process; the program that drives the JVM has none. */
  private record Connection(BiFunction<String, Object, Object> function, PythonProcess process) {
    boolean serves() {
      return process == null || process.serves();
    }
  }

  /** Sets the function for commands. Called by a Python process. */
  public void use(BiFunction<String, Object, Object> function) {
    Connection before = connection;
    connection = new Connection(function, null);
    if (before != null && before.process != null) before.process.end();
  }

  /** Shows the state of a job in the web UI. Called by a Python process with a job. */
  public void showJob(String job) {
    LanceWebUi.show(job);
  }

  /** An error of the Python package at the end of a command. */
  static class Failure extends RuntimeException {
    private static final long serialVersionUID = 1L;

    final String kind;

    Failure(String kind, String message) {
      super(message);
      this.kind = kind;
    }
  }

  /** A failed start of a process. Another start with the same settings would fail, too. */
  static final class Refusal extends Failure {
    private static final long serialVersionUID = 1L;

    Refusal(String kind, String message) {
      super(kind, message);
    }
  }

  /** The last refusal, with the settings and the time of the start. */
  private record Refused(String settings, Refusal refusal, long nanos) {
    boolean holds(String present) {
      long age = System.nanoTime() - nanos;
      return settings.equals(present) && age < TimeUnit.SECONDS.toNanos(REFUSAL_SECONDS);
    }
  }

  /** Starts a process before the first command, in a JVM without a Python program. */
  static void startAhead() {
    if (PythonProcess.hasDriver(SparkContext.getOrCreate().getConf())) return;
    Thread thread = new Thread(PythonGateway::tryToConnect, "lance-spark-python-start");
    thread.setDaemon(true);
    thread.start();
  }

  /**
   * Runs a command in Python and returns the answer.
   *
   * @param arguments the JSON arguments of the command
   * @param object an object of the JVM for the command, or null
   * @throws Failure the command failed with an error of the Python package; exceptions of the JVM
   *     pass unchanged
   */
  static Json call(String command, Map<String, ?> arguments, Object object) {
    Json request = new Json().with("command", command).with("arguments", arguments);
    Object reply = reply(connect(), command, Json.write(request), object);
    if (reply instanceof Throwable error) throw Errors.thrown(error);
    Json answer = Json.parse((String) reply);
    String error = answer.text("error");
    if (error != null) throw new Failure(answer.text("kind"), error);
    return answer;
  }

  private static Object reply(Connection python, String command, String request, Object object) {
    try {
      if (python.process == null) return python.function.apply(request, object);
      return python.process.run(() -> python.function.apply(request, object));
    } catch (Py4JException error) {
      if (python.process == null || !python.process.hasEnded()) throw error;
      throw PythonProcess.failure(
          "The Python process of the Lance tables ended during the command "
              + command
              + ". A commit before the end stays, and the history shows the job as DEAD. Run the"
              + " statement again.");
    }
  }

  private static void tryToConnect() {
    try {
      connect();
    } catch (Failure failure) {
      LOG.warn(failure.getMessage());
    }
  }

  private static synchronized Connection connect() {
    Connection present = connection;
    if (present != null && present.serves()) return present;
    connection = null;
    if (present != null) present.process.end();
    PythonProcess process = startUnlessRefused();
    connection = new Connection(connection.function, process);
    return connection;
  }

  /** Each statement runs several commands. A failed start takes seconds for each command. */
  private static PythonProcess startUnlessRefused() {
    String settings = PythonProcess.settings();
    if (refused != null && refused.holds(settings)) {
      throw new Refusal(refused.refusal.kind, refused.refusal.getMessage());
    }
    try {
      return PythonProcess.start();
    } catch (Refusal refusal) {
      refused = new Refused(settings, refusal, System.nanoTime());
      throw refusal;
    }
  }
}
