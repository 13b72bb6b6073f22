package lancespark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.kvstore.KVStore;
import org.apache.spark.util.kvstore.KVStoreIterator;

/** Keeps the newest jobs of an application in the store of its web UI. */
final class LanceJobListener extends SparkListener {
  private final KVStore store;
  private final long retained;

  LanceJobListener(SparkConf conf, KVStore store) {
    this.store = store;
    this.retained = Math.max(1, conf.getInt("spark.ui.retainedJobs", 1000));
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (!(event instanceof LanceJobEvent change) || change.job() == null) return;
    try {
      store.write(change.job());
      removeOldest(store.count(LanceJob.class));
    } catch (Exception error) {
      throw Errors.thrown(error);
    }
  }

  /** Jobs without an end have no driver after the end of the application. */
  @Override
  public void onApplicationEnd(SparkListenerApplicationEnd end) {
    try {
      for (LanceJob job : jobs(store, false, Long.MAX_VALUE)) {
        if (job.isRunning()) store.write(job.dead(end.time()));
      }
    } catch (Exception error) {
      throw Errors.thrown(error);
    }
  }

  /** Removes a tenth of the jobs at once, as Spark does. Running jobs go last. */
  private void removeOldest(long count) throws Exception {
    if (count <= retained) return;
    for (LanceJob job : jobs(store, false, Math.max(retained / 10, count - retained))) {
      store.delete(LanceJob.class, job.key());
    }
  }

  /** Returns jobs by {@link LanceJob#age}, or in the reverse order. */
  static List<LanceJob> jobs(KVStore store, boolean reverse, long most) throws Exception {
    return jobs(store, reverse, 0, most);
  }

  static List<LanceJob> jobs(KVStore store, boolean reverse, long skip, long most)
      throws Exception {
    var view = store.view(LanceJob.class).index(LanceJob.AGE).skip(skip).max(most);
    List<LanceJob> jobs = new ArrayList<>();
    try (KVStoreIterator<LanceJob> items = (reverse ? view.reverse() : view).closeableIterator()) {
      items.forEachRemaining(jobs::add);
    }
    return jobs;
  }
}
