package lancespark;

import java.util.Base64;
import java.util.List;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonUtils$;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.python.UserDefinedPythonTableFunction;
import scala.Option;
import scala.Tuple3;
import scala.collection.immutable.Seq;

/** Table functions of searches, for all sessions with the extension. */
final class LanceFunctions {
  /** The functions of lance_spark/read/ranking/functions.py. */
  private static final List<String> NAMES =
      List.of("lance_vector_search", "lance_text_search", "lance_hybrid_search");

  private LanceFunctions() {}

  static void inject(SparkSessionExtensions extensions) {
    for (String name : NAMES) {
      var info = new ExpressionInfo(LanceFunctions.class.getName(), name);
      extensions.injectTableFunction(
          new Tuple3<>(
              new FunctionIdentifier(name),
              info,
              Scala.function(arguments -> call(name, arguments))));
    }
  }

  /** Returns the plan of a call. Spark checks the arguments in a Python process. */
  private static LogicalPlan call(String name, Seq<Expression> arguments) {
    Json answer = LanceSource.ask("search_function", new Json().with("name", name));
    byte[] handler = Base64.getDecoder().decode(answer.text("handler"));
    PythonFunction function = PythonUtils$.MODULE$.createPythonFunction(handler);
    var udtf =
        new UserDefinedPythonTableFunction(
            name, function, Option.empty(), (int) answer.number("kind"), false);
    SparkSession session = SparkSession.active();
    return udtf.builder(arguments, () -> session.sessionState().sqlParser());
  }
}
