package lancespark;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.Py4JServer;

/**
 * A Python process for a JVM without a Python driver: spark-sql, the Thrift server, spark-shell and
 * a stock Connect server.
 *
 * <p>The process drives the JVM as a program under spark-submit does, over a local socket with a
 * secret. The process ends with the JVM, at the end of its standard input.
 */
final class PythonProcess {
  private static final String MODULE = "lance_spark.sql.gateway_process";
  private static final int START_SECONDS = 120;
  private static final int SHOWN_LINES = 5;

  /** Exit statuses from this number on tell the signal that ended a process. */
  private static final int FIRST_SIGNAL = 128;

  private final Process process;
  private final Py4JServer server;
  private final SparkContext context;

  /** Tag of the Spark jobs of this process. */
  private final String tag;

  private PythonProcess(Process process, Py4JServer server, SparkContext context, String tag) {
    this.process = process;
    this.server = server;
    this.context = context;
    this.tag = tag;
    CompletableFuture<Void> unused = process.onExit().thenRun(this::cancelJobs);
  }

  /** Tells whether spark-submit runs a Python program, which is the gateway's process itself. */
  static boolean hasDriver(SparkConf conf) {
    return conf.contains("spark.submit.pyFiles")
        || System.getenv("_PYSPARK_DRIVER_CONN_INFO_PATH") != null;
  }

  /**
   * Starts a process and waits until the process serves the gateway.
   *
   * @throws PythonGateway.Refusal another start would fail, too: there is no such interpreter, or
   *     it lacks the package, or has the package of another release
   * @throws PythonGateway.Failure no process serves the gateway; the message has the interpreter
   *     and the reason
   */
  static PythonProcess start() {
    SparkContext context = SparkContext.getOrCreate();
    String python = interpreter(context.getConf());
    String tag = "lance-spark-python-" + UUID.randomUUID();
    Py4JServer server = startServer(context, tag);
    try {
      ProcessBuilder command = new ProcessBuilder(python, "-P", "-m", MODULE);
      command.environment().put("PYSPARK_GATEWAY_PORT", String.valueOf(server.getListeningPort()));
      command.environment().put("PYSPARK_GATEWAY_SECRET", server.secret());
      Process process = command.start();
      PythonProcess started = new PythonProcess(process, server, context, tag);
      try {
        started.await(python);
        return started;
      } catch (RuntimeException error) {
        started.end();
        throw error;
      }
    } catch (IOException error) {
      server.shutdown();
      throw refusal(noProcess(python, error.getMessage()));
    }
  }

  /** Tells whether the process is alive and attached to the present application of the JVM. */
  boolean serves() {
    return process.isAlive() && !context.isStopped();
  }

  /**
   * Runs a request to the process. The jobs of the request end with the process: a job in this
   * thread would not notice the end.
   */
  Object run(Supplier<Object> request) {
    boolean isNested = context.getJobTags().contains(tag);
    if (isNested) return request.get();
    context.addJobTag(tag);
    try {
      return request.get();
    } finally {
      context.removeJobTag(tag);
    }
  }

  private void cancelJobs() {
    if (!context.isStopped()) context.cancelJobsWithTag(tag);
  }

  /** Tells whether the process has ended, a moment after a request that failed. */
  boolean hasEnded() {
    try {
      return process.waitFor(2, TimeUnit.SECONDS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      return !process.isAlive();
    }
  }

  void end() {
    process.destroyForcibly();
    server.shutdown();
  }

  /** Returns the settings that decide whether a process can start. */
  static String settings() {
    SparkContext context = SparkContext.getOrCreate();
    return interpreter(context.getConf()) + "\n" + context.applicationId();
  }

  /** Returns the interpreter. Only settings of the application count, as a session may SET any. */
  private static String interpreter(SparkConf conf) {
    return Stream.of(
            conf.get("spark.pyspark.driver.python", null),
            conf.get("spark.pyspark.python", null),
            System.getenv("PYSPARK_DRIVER_PYTHON"),
            System.getenv("PYSPARK_PYTHON"))
        .filter(Objects::nonNull)
        .findFirst()
        .orElse("python3");
  }

  /**
   * Starts a server in a thread of this package. The threads of the server inherit from the thread:
   * they load the classes of this package, their jobs have the tag, and the JVM ends at the end of
   * `main`.
   */
  private static Py4JServer startServer(SparkContext context, String tag) {
    FutureTask<Py4JServer> task =
        new FutureTask<>(
            () -> {
              context.addJobTag(tag);
              Py4JServer server = new Py4JServer(context.getConf());
              server.start();
              return server;
            });
    Thread thread = new Thread(task, "lance-spark-python-server");
    thread.setDaemon(true);
    thread.setContextClassLoader(PythonProcess.class.getClassLoader());
    thread.start();
    try {
      return task.get();
    } catch (InterruptedException | ExecutionException error) {
      throw new IllegalStateException(error);
    }
  }

  private void await(String python) {
    Deque<String> lines = new ArrayDeque<>();
    Thread errors = new Thread(() -> copyErrors(lines), "lance-spark-python-errors");
    errors.setDaemon(true);
    errors.start();
    BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
    try {
      String answer =
          CompletableFuture.supplyAsync(() -> line(output)).get(START_SECONDS, TimeUnit.SECONDS);
      if (answer == null) {
        errors.join(TimeUnit.SECONDS.toMillis(10));
        PythonGateway.Failure failure = noProcess(python, "it ended at its start: " + last(lines));
        // Without such an exit status, a signal has ended the process.
        boolean isExit =
            process.waitFor(10, TimeUnit.SECONDS) && process.exitValue() < FIRST_SIGNAL;
        throw isExit ? refusal(failure) : failure;
      }
      Json read = parsed(python, answer);
      String error = read.text("error");
      if (error != null) throw new PythonGateway.Refusal(read.text("kind"), error);
    } catch (TimeoutException error) {
      throw noProcess(python, "it did not answer within " + START_SECONDS + " s: " + last(lines));
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw noProcess(python, "the start was interrupted");
    } catch (ExecutionException error) {
      throw noProcess(python, error.getMessage());
    }
  }

  /** Returns the answer. The start of an interpreter may print other lines. */
  private static Json parsed(String python, String answer) {
    try {
      return Json.parse(answer);
    } catch (IllegalStateException error) {
      throw noProcess(python, "it printed at its start: " + answer);
    }
  }

  private static String line(BufferedReader output) {
    try {
      return output.readLine();
    } catch (IOException error) {
      return null;
    }
  }

  /** Copies messages of the process to those of the JVM, and keeps the last ones. */
  private void copyErrors(Deque<String> lines) {
    try (BufferedReader errors = process.errorReader(StandardCharsets.UTF_8)) {
      for (String line = errors.readLine(); line != null; line = errors.readLine()) {
        System.err.println(line);
        synchronized (lines) {
          lines.addLast(line);
          if (lines.size() > SHOWN_LINES) lines.removeFirst();
        }
      }
    } catch (IOException error) {
      // The process has ended.
    }
  }

  private static String last(Deque<String> lines) {
    synchronized (lines) {
      return String.join("\n", lines);
    }
  }

  private static PythonGateway.Refusal refusal(PythonGateway.Failure failure) {
    return new PythonGateway.Refusal(failure.kind, failure.getMessage());
  }

  private static PythonGateway.Failure noProcess(String python, String reason) {
    return failure(
        "No Python process serves the Lance tables of this JVM. Nothing was changed. Install"
            + " lance-spark for the interpreter "
            + python
            + ", or name another interpreter in spark.pyspark.driver.python. Reason: "
            + reason);
  }

  static PythonGateway.Failure failure(String text) {
    String kind = "GatewayError";
    return new PythonGateway.Failure(kind, "lance_spark.errors." + kind + ": " + text);
  }
}
