package lancespark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.BiFunction;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.unsafe.Platform;
import scala.jdk.javaapi.CollectionConverters;

/** The driver's Python process, which does what the catalog and the statements ask for. */
public final class PythonGateway {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static volatile BiFunction python;

  /** Called by the Python process that drives the JVM, once it is there. */
  public void use(BiFunction function) {
    python = function;
  }

  /** What a call ended with, where that is an error of this package. */
  static final class Failure extends RuntimeException {
    private static final long serialVersionUID = 1L;

    final String kind;

    Failure(String kind, String message) {
      super(message);
      this.kind = kind;
    }
  }

  /**
   * Has Python carry out a command, and returns its answer. Objects of the JVM go along in `given`.
   *
   * An exception of the JVM that ended it is thrown as it is.
   */
  static Map call(String command, Map arguments, Object given) {
    BiFunction function = python;
    if (function == null) throw new IllegalStateException("no Python process serves this catalog: call lance_spark.enable_pushdown(spark)");
    Map request = new LinkedHashMap();
    request.put("command", command);
    request.put("arguments", arguments);
    try {
      Object answer = function.apply(JSON.writeValueAsString(request), given);
      if (answer instanceof Throwable) Platform.throwException((Throwable) answer);
      Map read = (Map) JSON.readValue((String) answer, Map.class);
      if (read.get("error") != null) throw new Failure((String) read.get("kind"), (String) read.get("error"));
      return read;
    } catch (java.io.IOException error) {
      throw new IllegalStateException(error);
    }
  }

  static Object parsed(String json) {
    try {
      return JSON.readValue(json, Object.class);
    } catch (java.io.IOException error) {
      throw new IllegalStateException(error);
    }
  }

  /** What Spark throws where a Python data source fails. */
  static AnalysisException error(String action, Failure failure) {
    Map parameters = new HashMap();
    parameters.put("type", "lance");
    parameters.put("action", action.replace('_', ' '));
    parameters.put("msg", failure.getMessage());
    return new AnalysisException("PYTHON_DATA_SOURCE_ERROR", scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(parameters)));
  }
}
