package lancespark;

import java.util.List;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.FloatType$;
import org.apache.spark.unsafe.Platform;
import scala.runtime.AbstractFunction1;

/**
 * `l2_distance(a, b)`: Spark's `vector_l2_distance`, which takes nothing but arrays of floats, of arrays of any numbers. A function of SQL
 * would not do: Spark refuses those in ORDER BY.
 */
public final class LanceDistance extends AbstractFunction1 {
  private static final String NAME = "l2_distance";
  private static final String OF_SPARK = "org.apache.spark.sql.catalyst.expressions.VectorL2Distance";
  private static final DataType VECTOR = new ArrayType(FloatType$.MODULE$, true);

  /** Gives a session the function, if it has none of this name and its Spark has the one that it stands for. */
  public void register(SparkSession session) {
    if (Reflection.exists(OF_SPARK) && !isTaken(session)) session.sessionState().functionRegistry().createOrReplaceTempFunction(NAME, this, "scala_udf");
  }

  /** Looks into the registry: the session's catalog would ask the current catalog, which may be in the making. */
  private static boolean isTaken(SparkSession session) {
    List names = Reflection.list(session.sessionState().functionRegistry().listFunction());
    for (int i = 0; i < names.size(); i++) {
      if (((FunctionIdentifier) names.get(i)).funcName().equalsIgnoreCase(NAME)) return true;
    }
    return false;
  }

  public Object apply(Object arguments) {
    List given = Reflection.list((scala.collection.Iterable) arguments);
    if (given.size() != 2) throw new IllegalArgumentException("l2_distance takes two vectors, not " + given.size() + " arguments: l2_distance(vector, array(0.1, 0.2))");
    try {
      return Reflection.create(Class.forName(OF_SPARK), new Object[] {vector(given.get(0)), vector(given.get(1))});
    } catch (Exception error) {
      Platform.throwException(error);
      return null;
    }
  }

  private static Expression vector(Object value) throws Exception {
    return (Expression) Reflection.create(Cast.class, new Object[] {value, VECTOR});
  }
}
