package lancespark;

import java.util.Map;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;

/**
 * What differs between the releases of Spark that one jar serves. Classes for some releases lie in the jar beside the others, and are reached
 * by their names: a release that lacks what they extend never loads them.
 */
final class SparkRelease {
  /** Whether the release lets a table choose the changes of schema evolution: from 4.2 on. */
  static final boolean EVOLVES_TABLES = Reflection.exists("org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution");

  /** Whether a catalog is asked for a table with the options of the read: from 4.3 on. */
  static final boolean HANDS_OVER_OPTIONS = Reflection.exists("org.apache.spark.sql.connector.catalog.TableContext");

  private static final String EVOLVING_TABLE = "lancespark.EvolvingTable";

  private SparkRelease() {}

  /** Makes a table of the catalog, with schema evolution where the release has that. */
  static LanceTable table(AbstractLanceCatalog catalog, Identifier identifier, Map opened) {
    if (!EVOLVES_TABLES) return new LanceTable(catalog, identifier, opened);
    try {
      Class<?> type = Class.forName(EVOLVING_TABLE, true, SparkRelease.class.getClassLoader());
      return (LanceTable) type.getDeclaredConstructor(AbstractLanceCatalog.class, Identifier.class, Map.class).newInstance(catalog, identifier, opened);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  /** The catalogs of a session. Its manager is a class before Spark 4.3, and an interface from then on. */
  static final class Catalogs {
    private final Object manager;

    Catalogs(SparkSession session) {
      try {
        this.manager = Reflection.call(session.sessionState(), "catalogManager");
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }

    boolean isRegistered(String name) {
      return (Boolean) call("isCatalogRegistered", name);
    }

    CatalogPlugin named(String name) {
      return (CatalogPlugin) call("catalog", name);
    }

    CatalogPlugin current() {
      return (CatalogPlugin) call("currentCatalog");
    }

    String[] currentNamespace() {
      return (String[]) call("currentNamespace");
    }

    private Object call(String method, Object... arguments) {
      Class<?>[] types = new Class<?>[arguments.length];
      java.util.Arrays.fill(types, String.class);
      try {
        return manager.getClass().getMethod(method, types).invoke(manager, arguments);
      } catch (java.lang.reflect.InvocationTargetException error) {
        org.apache.spark.unsafe.Platform.throwException(error.getCause());
        return null;
      } catch (ReflectiveOperationException error) {
        throw new IllegalStateException(error);
      }
    }
  }
}
