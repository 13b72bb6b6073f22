package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.status.KVUtils.KVStoreScalaSerializer;
import org.apache.spark.util.JsonProtocol;
import org.apache.spark.util.kvstore.InMemoryStore;
import org.junit.jupiter.api.Test;

/** Jobs in event logs, and in the store of the web UI. */
class LanceJobTest {
  private final InMemoryStore store = new InMemoryStore();
  private final SparkConf conf = new SparkConf(false).set("spark.ui.retainedJobs", "20");
  private final LanceJobListener listener = new LanceJobListener(conf, store);

  private static LanceJob job(String id, String status, long launched) {
    Json error = new Json().with("row_address", 7).with("error_type", "ValueError");
    Json fields =
        new Json()
            .with("job_id", id)
            .with("status", status)
            .with("table_uri", "/t.lance")
            .with("columns", List.of("a", "b"))
            .with("launched_at", launched)
            .with("rows_selected", 10)
            .with("errors", List.of(error));
    return Json.read(Json.write(fields), LanceJob.class);
  }

  private List<String> shown() throws Exception {
    List<String> ids = new ArrayList<>();
    LanceJobListener.jobs(store, true, 100).forEach(job -> ids.add(job.jobId()));
    return ids;
  }

  @Test
  void anEventLogHoldsAJob() {
    LanceJobEvent event = new LanceJobEvent(job("x", "DONE", 5));
    String line = JsonProtocol.sparkEventToJsonString(event);
    assertTrue(line.contains("\"Event\":\"lancespark.LanceJobEvent\""), line);
    assertEquals(event, JsonProtocol.sparkEventFromJson(line));
    assertFalse(line.contains("running") || line.contains("\"age\""), line);
  }

  @Test
  void anEventOfAnotherReleaseIsReadable() {
    String line =
        "{\"Event\":\"lancespark.LanceJobEvent\",\"later\":1,"
            + "\"job\":{\"job_id\":\"x\",\"later\":{},\"columns\":[null],\"errors\":[{\"later\":2},null]}}";
    LanceJob job = ((LanceJobEvent) JsonProtocol.sparkEventFromJson(line)).job();
    assertEquals("x", job.jobId());
    assertEquals("", job.status());
    assertEquals(0, job.rowsSelected());
    assertEquals(1, job.errors().size());
  }

  @Test
  void aStoreOnDiskHoldsAJob() throws Exception {
    KVStoreScalaSerializer serializer = new KVStoreScalaSerializer();
    LanceJob job = job("x", "RUNNING", 5);
    assertEquals(job, serializer.deserialize(serializer.serialize(job), LanceJob.class));
  }

  @Test
  void theNewestJobsStayAndRunningJobsGoLast() throws Exception {
    listener.onOtherEvent(new LanceJobEvent(job("live", "RUNNING", 0)));
    for (int i = 1; i <= 10_000; i++) {
      listener.onOtherEvent(new LanceJobEvent(job("j" + i, "DONE", i)));
    }
    listener.onOtherEvent(new LanceJobEvent(null));
    List<String> shown = shown();
    assertTrue(shown.size() <= 20 && shown.size() >= 18, shown::toString);
    assertEquals(List.of("live", "j10000", "j9999"), shown.subList(0, 3));
    listener.onOtherEvent(new LanceJobEvent(job("j10000", "DONE", 20_000)));
    assertEquals(shown, shown());
    for (int i = 0; i < 100; i++) {
      listener.onOtherEvent(new LanceJobEvent(job("r" + i, "RUNNING", i)));
    }
    assertTrue(shown().size() <= 20, "running jobs, too, are bounded");
  }

  @Test
  void theEndOfTheApplicationEndsItsJobs() throws Exception {
    listener.onOtherEvent(new LanceJobEvent(job("live", "RUNNING", 1)));
    listener.onOtherEvent(new LanceJobEvent(job("done", "DONE", 2)));
    listener.onApplicationEnd(new SparkListenerApplicationEnd(9, scala.Option.empty()));
    List<LanceJob> jobs = LanceJobListener.jobs(store, false, 100);
    assertEquals(List.of("DEAD", "DONE"), jobs.stream().map(LanceJob::status).toList());
    assertEquals(9, jobs.get(0).completedAt());
  }

  @Test
  void aRunningJobWithoutHeartbeatsShowsAsDead() {
    LanceJob job = job("live", "RUNNING", 1);
    assertEquals("RUNNING", job.at(90_000).status());
    LanceJob lost = job.at(90_001);
    assertEquals("DEAD", lost.status());
    assertEquals(0, lost.completedAt());
    assertEquals(job("done", "DONE", 2), job("done", "DONE", 2).at(1L << 46));
  }

  @Test
  void aTextIsNeverAnElement() {
    String html =
        Html.element("p", "", Html.text("<b>&'\"\u202e\u0007" + "x".repeat(500))).toString();
    assertTrue(html.startsWith("<p><bdi>&lt;b&gt;&amp;"), html);
    assertFalse(html.contains("\u202e") || html.contains("\u0007"), html);
    assertTrue(html.length() < 400, html);
  }
}
