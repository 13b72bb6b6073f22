package other;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/** An extension of others, with statements of the same words on tables of a catalog `other`. */
public final class OtherExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectParser(
        new AbstractFunction2<SparkSession, ParserInterface, ParserInterface>() {
          @Override
          public ParserInterface apply(SparkSession session, ParserInterface next) {
            return parser(next);
          }
        });
    return BoxedUnit.UNIT;
  }

  private static ParserInterface parser(ParserInterface next) {
    return (ParserInterface)
        Proxy.newProxyInstance(
            OtherExtensions.class.getClassLoader(),
            new Class<?>[] {ParserInterface.class},
            (proxy, method, arguments) -> answer(next, method, arguments));
  }

  private static Object answer(ParserInterface next, Method method, Object[] arguments)
      throws Throwable {
    Object[] passed = arguments;
    // Also with parameters, as `sql` of PySpark calls it.
    if (method.getName().startsWith("parsePlan")) {
      String sql = (String) arguments[0];
      if (sql.contains("other.broken")) throw new IllegalStateException("other: " + sql);
      if (sql.matches("(?is)(OPTIMIZE|VACUUM|SHOW TAGS FROM) other\\..*")) {
        passed = arguments.clone();
        passed[0] = "SELECT 'other' AS parser";
      }
    }
    try {
      return method.invoke(next, passed);
    } catch (InvocationTargetException error) {
      throw error.getCause();
    }
  }
}
