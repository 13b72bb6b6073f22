package lancespark;

import jakarta.servlet.http.HttpServletRequest;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.UIUtils;
import scala.Product;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.xml.Node;

/**
 * Differences between the supported releases of Spark, and private fields of Spark. All reflection
 * is here. The jar holds classes for all releases. Only a release with the superclass of a class
 * loads the class.
 */
final class SparkRelease {
  /** Schema evolution asks the table for each change, from Spark 4.2 on. */
  static final boolean EVOLVES_TABLES =
      hasClass("org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution");

  /** A catalog gets the options of a read, from Spark 4.3 on. */
  static final boolean HANDS_OVER_OPTIONS =
      hasClass("org.apache.spark.sql.connector.catalog.TableContext");

  static final String INSERT_ONLY_MERGE =
      "org.apache.spark.sql.catalyst.plans.logical.InsertOnlyMerge";

  /** A MERGE with only inserts has a plan of its own, from Spark 4.3 on. */
  static final boolean KEEPS_INSERT_ONLY_MERGES = hasClass(INSERT_ONLY_MERGE);

  private static final String EVOLVING_TABLE = "lancespark.EvolvingTable";

  private static final List<String> MERGE_RULES =
      List.of(
          "org.apache.spark.sql.execution.planmerging.MergeSubplans",
          "org.apache.spark.sql.catalyst.optimizer.MergeSubplans",
          "org.apache.spark.sql.catalyst.optimizer.MergeScalarSubqueries");

  private SparkRelease() {}

  /** Tells whether this release of Spark has a class. */
  static boolean hasClass(String name) {
    try {
      Class.forName(name);
      return true;
    } catch (ClassNotFoundException error) {
      return false;
    }
  }

  /** Makes a table of the catalog, with schema evolution from Spark 4.2 on. */
  static LanceTable table(AbstractLanceCatalog catalog, Identifier identifier, Json opened) {
    if (!EVOLVES_TABLES) return new LanceTable(catalog, identifier, opened);
    try {
      return Class.forName(EVOLVING_TABLE, true, SparkRelease.class.getClassLoader())
          .asSubclass(LanceTable.class)
          .getDeclaredConstructor(AbstractLanceCatalog.class, Identifier.class, Json.class)
          .newInstance(catalog, identifier, opened);
    } catch (ReflectiveOperationException error) {
      throw cause(error);
    }
  }

  /**
   * Copies a case class and replaces fields by their names, because constructors grow from release
   * to release. A field outside this release is ignored.
   */
  static <T extends Product> T copy(T original, Map<String, ?> changes) {
    Object[] values = new Object[original.productArity()];
    for (int i = 0; i < values.length; i++) {
      String name = original.productElementName(i);
      values[i] = changes.containsKey(name) ? changes.get(name) : original.productElement(i);
    }
    for (Constructor<?> constructor : original.getClass().getConstructors()) {
      if (constructor.getParameterCount() != values.length) continue;
      @SuppressWarnings("unchecked") // a copy has the class of the original
      T copy = (T) make(constructor, values);
      return copy;
    }
    throw new IllegalStateException(
        original.getClass().getName() + " has no constructor of all of its fields");
  }

  static <T extends Product> T copy(T original, String name, Object value) {
    return copy(original, java.util.Collections.singletonMap(name, value));
  }

  /** Makes a case class from its first fields. The other fields get their defaults. */
  static <T> T create(Class<T> type, Object... first) {
    Constructor<?> longest =
        Arrays.stream(type.getConstructors())
            .max(Comparator.comparingInt(Constructor::getParameterCount))
            .orElseThrow();
    Object[] values = Arrays.copyOf(first, longest.getParameterCount());
    for (int i = first.length; i < values.length; i++) {
      try {
        values[i] = type.getMethod("$lessinit$greater$default$" + (i + 1)).invoke(null);
      } catch (ReflectiveOperationException error) {
        throw cause(error);
      }
    }
    return type.cast(make(longest, values));
  }

  /** Makes an object of a class of some releases. */
  static Object create(String type, Object... first) {
    try {
      return create(Class.forName(type), first);
    } catch (ReflectiveOperationException error) {
      throw cause(error);
    }
  }

  private static Object make(Constructor<?> constructor, Object[] values) {
    try {
      return constructor.newInstance(values);
    } catch (ReflectiveOperationException error) {
      throw cause(error);
    }
  }

  /** Reads a private field of a class or of its superclasses. */
  static Object field(Object owner, String name) {
    try {
      Field field = declaredField(owner.getClass(), name);
      field.setAccessible(true);
      return field.get(owner);
    } catch (ReflectiveOperationException error) {
      throw cause(error);
    }
  }

  /** Sets a private field of a class or of its superclasses. */
  static void setField(Object owner, String name, Object value) {
    try {
      Field field = declaredField(owner.getClass(), name);
      field.setAccessible(true);
      field.set(owner, value);
    } catch (ReflectiveOperationException error) {
      throw cause(error);
    }
  }

  private static Field declaredField(Class<?> owner, String name) throws NoSuchFieldException {
    for (Class<?> type = owner; type != null; type = type.getSuperclass()) {
      for (Field field : type.getDeclaredFields()) {
        if (field.getName().equals(name)) return field;
      }
    }
    throw new NoSuchFieldException(owner.getName() + " has no field " + name);
  }

  /** Calls a public method. Its arguments are texts. */
  static Object call(Object owner, String name, String... arguments) {
    Class<?>[] types = new Class<?>[arguments.length];
    Arrays.fill(types, String.class);
    try {
      Method method = owner.getClass().getMethod(name, types);
      method.setAccessible(true);
      return method.invoke(owner, (Object[]) arguments);
    } catch (ReflectiveOperationException error) {
      throw cause(error);
    }
  }

  /** Reads a field of a class of Scala that a class within it reads too. */
  static Object scalaField(Object owner, String name) {
    return field(owner, owner.getClass().getName().replace('.', '$') + "$$" + name);
  }

  /**
   * Returns Spark's runner of a Python function, whose answers are Arrow batches. Spark's evaluator
   * makes rows of the same answers. The runner has no name of its own in Spark.
   */
  @SuppressWarnings("unchecked") // a runner of ArrowPythonRunner
  static BasePythonRunner<Iterator<InternalRow>, ColumnarBatch> arrowRunner(
      MapInBatchEvaluatorFactory function) {
    Object evaluator = function.createEvaluator();
    try {
      Class<?> type = Class.forName(evaluator.getClass().getName() + "$$anon$1");
      Object[] arguments = {evaluator, new int[][] {{0}}};
      return (BasePythonRunner<Iterator<InternalRow>, ColumnarBatch>)
          make(type.getConstructors()[0], arguments);
    } catch (ReflectiveOperationException error) {
      throw cause(error);
    }
  }

  /** Returns the writers of the columns that a runner sends to Python. Changes take effect. */
  static ArrowFieldWriter[] arrowFields(BasePythonRunner<?, ?> runner) {
    return (ArrowFieldWriter[]) field(call(runner, "arrowWriter"), "fields");
  }

  /** Returns a page of the web UI around its content. Releases differ in the number of flags. */
  static Seq<Node> page(
      HttpServletRequest request, String title, Seq<Node> content, SparkUITab tab) {
    for (Method method : UIUtils.class.getMethods()) {
      if (!method.getName().equals("headerSparkPage")) continue;
      Object[] values = new Object[method.getParameterCount()];
      Arrays.fill(values, false);
      List<?> first =
          List.of(request, title, Scala.function(() -> content), tab, scala.Option.empty());
      System.arraycopy(first.toArray(), 0, values, 0, first.size());
      try {
        @SuppressWarnings("unchecked") // a page is nodes
        Seq<Node> page = (Seq<Node>) method.invoke(null, values);
        return page;
      } catch (ReflectiveOperationException error) {
        throw cause(error);
      }
    }
    throw new IllegalStateException("This release of Spark has no headerSparkPage.");
  }

  /** Throws the exception of the called method itself; other failures name the release. */
  private static RuntimeException cause(ReflectiveOperationException error) {
    if (error instanceof InvocationTargetException) throw Errors.thrown(error.getCause());
    return new IllegalStateException(
        "This release of Spark is not supported: " + error.getMessage(), error);
  }

  /** Spark's rule for subplans over the same table, or null in a release without the rule. */
  static Rule<LogicalPlan> mergeSubplans() {
    for (String name : MERGE_RULES) {
      if (!hasClass(name)) continue;
      try {
        @SuppressWarnings("unchecked") // a rule of the optimizer
        Rule<LogicalPlan> rule =
            (Rule<LogicalPlan>) Class.forName(name + "$").getField("MODULE$").get(null);
        return rule;
      } catch (ReflectiveOperationException error) {
        throw cause(error);
      }
    }
    return null;
  }

  /** The catalogs of a session. The manager is a class before Spark 4.3, and then an interface. */
  record Catalogs(Object manager) {
    static Catalogs of(SparkSession session) {
      return new Catalogs(call(session.sessionState(), "catalogManager"));
    }

    boolean isRegistered(String name) {
      return (Boolean) call(manager, "isCatalogRegistered", name);
    }

    CatalogPlugin byName(String name) {
      return (CatalogPlugin) call(manager, "catalog", name);
    }

    CatalogPlugin current() {
      return (CatalogPlugin) call(manager, "currentCatalog");
    }

    String[] currentNamespace() {
      return (String[]) call(manager, "currentNamespace");
    }
  }
}
