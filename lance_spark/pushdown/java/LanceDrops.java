package lancespark;

import java.lang.reflect.Field;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.DropTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEventListener;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogWithListener;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.internal.SharedState;

/**
 * Refuses `df.write.mode("overwrite").saveAsTable(t)` with a format of Spark's own, such as its default, where t is a Lance table: Spark drops
 * the table with all of its versions before the query runs, which may read it. No plan tells that; only the event does that precedes the drop.
 */
public final class LanceDrops implements ExternalCatalogEventListener {
  private static final String WRITER = "org.apache.spark.sql.classic.DataFrameWriter";
  private static final Set WATCHED = Collections.newSetFromMap(new WeakHashMap());

  private final ExternalCatalogWithListener catalog;

  private LanceDrops(ExternalCatalogWithListener catalog) {
    this.catalog = catalog;
  }

  /** Watches the catalog of a session's application if it may have Lance tables already. Spark opens it when it is first used. */
  static void watchIfOpen(SparkSession session) throws Exception {
    Field opened = SharedState.class.getDeclaredField("externalCatalog");
    opened.setAccessible(true);
    boolean lasts = session.sparkContext().conf().get("spark.sql.catalogImplementation", "in-memory").equals("hive");
    if (lasts || opened.get(session.sharedState()) != null) watch(session);
  }

  /** Watches the catalog of a session's application, once. */
  static void watch(SparkSession session) {
    ExternalCatalogWithListener catalog = session.sharedState().externalCatalog();
    synchronized (WATCHED) {
      if (WATCHED.add(catalog)) catalog.addListener(new LanceDrops(catalog));
    }
  }

  public void onEvent(ExternalCatalogEvent event) {
    if (!(event instanceof DropTablePreEvent)) return;
    DropTablePreEvent drop = (DropTablePreEvent) event;
    if (!isByAWriter() || !hasTheRule() || !catalog.tableExists(drop.database(), drop.name())) return;
    if (LanceCommands.isLance((CatalogTable) catalog.getTable(drop.database(), drop.name()))) {
      throw new LanceRefusal("[UNSUPPORTED_FEATURE.TABLE_OPERATION] Table `" + drop.name() + "` does not support " + LanceCommands.replacing(drop.name()));
    }
  }

  private static boolean isByAWriter() {
    StackTraceElement[] calls = new Throwable().getStackTrace();
    for (int i = 0; i < calls.length; i++) {
      if (calls[i].getClassName().equals(WRITER)) return true;
    }
    return false;
  }

  private static boolean hasTheRule() {
    List rules = Reflection.list(((SparkSession) SparkSession.active()).experimental().extraOptimizations());
    for (int i = 0; i < rules.size(); i++) {
      if (rules.get(i) instanceof LancePushdown) return true;
    }
    return false;
  }
}

/** A refusal that Spark passes on: of what listeners throw it logs all that Scala does not call fatal, and goes on. */
final class LanceRefusal extends LinkageError {
  LanceRefusal(String message) {
    super(message);
  }
}
