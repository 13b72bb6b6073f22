package lancespark;

import java.util.Map;
import java.util.function.BiFunction;

/** The Python process of the driver. It runs the commands of the catalog and of statements. */
public final class PythonGateway {
  private static volatile BiFunction<String, Object, Object> python;

  /** Sets the function for commands. Called by the Python process of the driver. */
  public void use(BiFunction<String, Object, Object> function) {
    python = function;
  }

  /** An error of the Python package at the end of a command. */
  static final class Failure extends RuntimeException {
    private static final long serialVersionUID = 1L;

    final String kind;

    Failure(String kind, String message) {
      super(message);
      this.kind = kind;
    }
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
    BiFunction<String, Object, Object> function = python;
    if (function == null) {
      throw new IllegalStateException(
          "no Python process serves this catalog: call lance_spark.enable_pushdown(spark)");
    }
    Json request = new Json().with("command", command).with("arguments", arguments);
    Object reply = function.apply(Json.write(request), object);
    if (reply instanceof Throwable error) throw Errors.thrown(error);
    Json answer = Json.parse((String) reply);
    String error = answer.text("error");
    if (error != null) throw new Failure(answer.text("kind"), error);
    return answer;
  }
}
