package lancespark;

import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.unsafe.Platform;

/** Errors of this package as Spark's AnalysisException. */
final class Errors {
  private static final String PACKAGE = "lance_spark.errors.";

  private Errors() {}

  /** An error of a condition of Spark. */
  static AnalysisException ofSpark(String condition, Map<String, String> parameters) {
    return new AnalysisException(condition, Scala.immutableMap(parameters));
  }

  /** Spark's own error for a failure of a Python data source. */
  static AnalysisException ofDataSource(String action, String message) {
    return ofSpark(
        "PYTHON_DATA_SOURCE_ERROR",
        Map.of("type", LanceSource.NAME, "action", action, "msg", message));
  }

  /** The error of a command to Python. */
  static AnalysisException ofCommand(String command, PythonGateway.Failure failure) {
    return ofDataSource(command.replace('_', ' '), failure.getMessage());
  }

  /** UnsupportedOperationError of the Python package. */
  static AnalysisException unsupported(String action, String text) {
    return ofDataSource(action, PACKAGE + "UnsupportedOperationError: " + text);
  }

  /** OptionError of the Python package. */
  static AnalysisException option(String text) {
    return ofDataSource("take options of", PACKAGE + "OptionError: " + text);
  }

  /** Tells whether an error belongs to the Python package. */
  static boolean isTyped(Throwable error) {
    return error instanceof AnalysisException
        && String.valueOf(error.getMessage()).contains(PACKAGE);
  }

  /** Throws an undeclared exception, as Scala does. */
  static RuntimeException thrown(Throwable error) {
    Platform.throwException(error);
    return new IllegalStateException(error);
  }
}
