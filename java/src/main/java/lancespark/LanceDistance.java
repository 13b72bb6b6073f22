package lancespark;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.FloatType$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;

/**
 * `l2_distance(a, b)`: Spark's `vector_l2_distance` with arrays of any numbers, cast to floats. A
 * SQL function cannot do this, because Spark refuses SQL functions in ORDER BY.
 */
final class LanceDistance extends AbstractFunction1<Seq<Expression>, Expression> {
  private static final String NAME = "l2_distance";
  private static final String OF_SPARK =
      "org.apache.spark.sql.catalyst.expressions.VectorL2Distance";
  private static final ArrayType VECTOR = new ArrayType(FloatType$.MODULE$, true);

  /** Registers the function, unless the name is taken or the release lacks Spark's function. */
  void register(SparkSession session) {
    if (!SparkRelease.hasClass(OF_SPARK) || isTaken(session)) return;
    session.sessionState().functionRegistry().createOrReplaceTempFunction(NAME, this, "scala_udf");
  }

  /** Asks the registry. The session's catalog would ask the current catalog during its start. */
  private static boolean isTaken(SparkSession session) {
    return Scala.list(session.sessionState().functionRegistry().listFunction()).stream()
        .anyMatch(function -> function.funcName().equalsIgnoreCase(NAME));
  }

  @Override
  public Expression apply(Seq<Expression> arguments) {
    List<Expression> vectors = Scala.list(arguments);
    if (vectors.size() != 2) {
      throw new IllegalArgumentException(
          "l2_distance takes two vectors, not "
              + vectors.size()
              + " arguments: l2_distance(vector, array(0.1, 0.2))");
    }
    return (Expression)
        SparkRelease.create(OF_SPARK, vector(vectors.get(0)), vector(vectors.get(1)));
  }

  private static Expression vector(Expression value) {
    return SparkRelease.create(Cast.class, value, VECTOR);
  }
}
