package lancespark;

import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.status.AppHistoryServerPlugin;
import org.apache.spark.status.ElementTrackingStore;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.WebUITab;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Seq;

/**
 * The tab "Lance" in the web UI of an application, with the jobs of the application. A history
 * server with the jar on its class path finds this class by its ServiceLoader.
 */
public final class LanceWebUi implements AppHistoryServerPlugin {
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.sql");
  private static final String PREFIX = "lance";

  /**
   * Adds the tab to the web UI of a running application. Without a web UI, nothing happens. A
   * distribution of Spark with another web UI has no tab.
   */
  static void attach(SparkContext context) {
    try {
      addTab(context);
    } catch (RuntimeException | LinkageError error) {
      LOG.warn("Spark's web UI has no tab for the jobs of Lance tables.", error);
    }
  }

  private static synchronized void addTab(SparkContext context) {
    SparkUI ui = Scala.orNull(context.ui());
    if (ui == null || hasTab(ui)) return;
    LanceWebUi plugin = new LanceWebUi();
    ElementTrackingStore store = (ElementTrackingStore) context.statusStore().store();
    plugin.setupUI(ui);
    for (SparkListener listener : Scala.list(plugin.createListeners(context.conf(), store))) {
      context.listenerBus().addToStatusQueue(listener);
    }
  }

  /** Sends the state of a job, as JSON, to the web UI and to the event log. */
  static void show(String job) {
    SparkContext context = Scala.orNull(SparkContext$.MODULE$.getActive());
    if (context == null || context.isStopped()) return;
    context.listenerBus().post(new LanceJobEvent(Json.read(job, LanceJob.class)));
  }

  @Override
  public Seq<SparkListener> createListeners(SparkConf conf, ElementTrackingStore store) {
    return Scala.seq(List.of(new LanceJobListener(conf, store)));
  }

  /** Adds the tab. The history server shows the tab only for applications with jobs. */
  @Override
  public void setupUI(SparkUI ui) {
    try {
      if (ui.sc().isEmpty() && ui.store().store().count(LanceJob.class) == 0) return;
    } catch (Exception error) {
      throw Errors.thrown(error);
    }
    Tab tab = new Tab(ui);
    tab.attachPage(new LanceJobsPage(tab, ui.store().store()));
    ui.attachTab(tab);
  }

  private static boolean hasTab(SparkUI ui) {
    for (WebUITab tab : Scala.list(ui.getTabs())) {
      if (tab.prefix().equals(PREFIX)) return true;
    }
    return false;
  }

  private static final class Tab extends SparkUITab {
    Tab(SparkUI ui) {
      super(ui, PREFIX);
    }
  }
}
