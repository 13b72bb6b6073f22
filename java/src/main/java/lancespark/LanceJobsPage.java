package lancespark;

import static lancespark.Html.element;
import static lancespark.Html.text;

import jakarta.servlet.http.HttpServletRequest;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.WebUIPage;
import org.apache.spark.util.kvstore.KVStore;
import scala.collection.immutable.Seq;
import scala.xml.Node;

/**
 * The page of the tab "Lance": running jobs first, then the newest. The page has no values of rows,
 * no messages of errors and no filters, because the web UI has no rights per table. Its own part
 * has no scripts.
 */
final class LanceJobsPage extends WebUIPage {
  private static final int PAGE_SIZE = 100;
  private static final DateTimeFormatter TIME =
      DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss 'UTC'", Locale.ROOT)
          .withZone(ZoneOffset.UTC);
  private static final String STYLE =
      """
      .lance-job { border-top: 1px solid #8886; padding: 0.4rem 0; }
      .lance-job, .lance-job * { overflow-wrap: anywhere; min-width: 0; }
      .lance-job summary { display: flex; flex-wrap: wrap; gap: 0.1rem 0.8rem; }
      .lance-job summary, .lance-job dl, .lance-job table { max-width: 100%; }
      .lance-job dl { display: grid; grid-template-columns: 9rem 1fr; margin: 0.4rem 0 0.4rem 1rem; }
      .lance-job dt, .lance-job dd { margin: 0; }
      .lance-job table { table-layout: fixed; }
      """;

  private final SparkUITab tab;
  private final KVStore store;

  LanceJobsPage(SparkUITab tab, KVStore store) {
    super("");
    this.tab = tab;
    this.store = store;
  }

  @Override
  public Seq<Node> render(HttpServletRequest request) {
    int page = pageOf(request.getParameter("page"));
    List<Node> content = new ArrayList<>();
    content.add(element("style", "", STYLE));
    try {
      long count = store.count(LanceJob.class);
      content.add(element("p", "", describe(count)));
      long skipped = (page - 1L) * PAGE_SIZE;
      long now = System.currentTimeMillis();
      for (LanceJob job : LanceJobListener.jobs(store, true, skipped, PAGE_SIZE)) {
        content.add(job(job.at(now)));
      }
      content.add(links(page, skipped + PAGE_SIZE < count));
    } catch (Exception error) {
      throw Errors.thrown(error);
    }
    return SparkRelease.page(request, "Lance", Scala.seq(content), tab);
  }

  /** Returns the number of a page. Any other text is the first page. */
  private static int pageOf(String number) {
    return number != null && number.matches("[1-9][0-9]{0,6}") ? Integer.parseInt(number) : 1;
  }

  private static String describe(long count) {
    if (count == 0) return "No job of this application has begun.";
    return String.format(
        Locale.ROOT,
        "%,d %s. The state of a running job is at most about ten seconds old. A job without a"
            + " heartbeat for 90 seconds shows as DEAD.",
        count,
        count == 1 ? "job" : "jobs");
  }

  private static Node links(int page, boolean hasMore) {
    Node newer = page == 1 ? null : Html.link("?page=" + (page - 1), "Newer jobs");
    Node older = hasMore ? Html.link("?page=" + (page + 1), "Older jobs") : null;
    return element("p", "", newer, " ", older);
  }

  private static Node job(LanceJob job) {
    Node head =
        element(
            "summary",
            "",
            element("strong", "", text(job.status())),
            element("strong", "", text(job.table())),
            element("span", "", text(String.join(", ", job.columns()))),
            element("span", "", text(job.jobType())),
            job.isRunning() ? Html.progress(job.rowsDone(), job.rowsSelected()) : null,
            element("span", "", rows(job)),
            element("span", "", pace(job)),
            element("span", "", time(job.launchedAt())));
    Node details = element("details", "lance-job", head, facts(job), errors(job));
    return job.isRunning() ? Html.open(details) : details;
  }

  private static String rows(LanceJob job) {
    if (job.rowsSelected() == 0) {
      return number(job.fragmentsDone()) + " of " + number(job.fragmentsTotal()) + " fragments";
    }
    return joined(
        number(job.rowsDone()) + " of " + number(job.rowsSelected()) + " rows",
        counted(job.rowsFailed(), "failed"),
        counted(job.rowsSkipped(), "skipped"));
  }

  private static String pace(LanceJob job) {
    double rate = job.rate();
    String speed = rate > 0 ? String.format(Locale.ROOT, "%,.1f rows/s", rate) : "";
    if (!job.isRunning()) {
      long end = job.completedAt() > 0 ? job.completedAt() : job.updatedAt();
      return joined("took " + duration((end - job.launchedAt()) / 1000.0), speed);
    }
    long left = Math.max(0, job.rowsSelected() - job.rowsDone());
    return joined(speed, rate > 0 ? "about " + duration(left / rate) + " left" : "");
  }

  private static Node facts(LanceJob job) {
    List<Node> facts = new ArrayList<>();
    add(facts, "job", job.jobId());
    add(facts, "table", job.tableUri());
    add(facts, "UDF", job.udfName());
    add(facts, job.completedAt() > 0 ? "ended" : "last sign", time(lastTime(job)));
    add(
        facts,
        "rows",
        joined(
            counted(job.rowsSelected(), "selected"),
            counted(job.rowsComputed(), "computed"),
            counted(job.rowsFromCheckpoint(), "from checkpoints"),
            counted(job.rowsSkipped(), "skipped"),
            counted(job.rowsFailed(), "failed")));
    add(
        facts,
        "fragments",
        number(job.fragmentsDone()) + " of " + number(job.fragmentsTotal()) + " done");
    add(facts, "read version", number(job.readVersion()));
    add(
        facts,
        "commits",
        job.commits() == 0
            ? ""
            : number(job.commits()) + ", last version " + number(job.lastVersion()));
    add(facts, "retries", job.retries() == 0 ? "" : number(job.retries()));
    add(
        facts,
        "conflicts",
        joined(
            counted(job.rowsCarried(), "values moved with their rows"),
            counted(job.rowsRecomputed(), "rows computed again"),
            counted(job.rowsNulled(), "rows set to NULL")));
    return element("dl", "", facts.toArray());
  }

  private static long lastTime(LanceJob job) {
    return job.completedAt() > 0 ? job.completedAt() : job.updatedAt();
  }

  private static void add(List<Node> facts, String name, String value) {
    if (value.isEmpty()) return;
    facts.add(element("dt", "", name));
    facts.add(element("dd", "", text(value)));
  }

  private static Node errors(LanceJob job) {
    if (job.errors().isEmpty()) return null;
    List<Node> rows = new ArrayList<>();
    for (LanceJob.RowError error : job.errors()) {
      String row =
          error.rowAddress() < 0
              ? "rows of fragment " + error.fragmentId()
              : error.rowAddress() + " @" + error.tableVersion();
      rows.add(tableRow("td", row, text(error.outcome()), text(error.errorType())));
    }
    Node head = tableRow("th", "row address @version", "outcome", "error");
    Node table =
        element(
            "table",
            "table table-sm",
            element("thead", "", head),
            element("tbody", "", rows.toArray()));
    String command = "lance-spark errors " + job.tableUri() + " --job " + job.jobId();
    return element(
        "div",
        "",
        table,
        element("p", "", "All errors with their messages: ", element("code", "", text(command))));
  }

  private static Node tableRow(String cell, Object... contents) {
    Object[] cells = new Object[contents.length];
    for (int i = 0; i < cells.length; i++) cells[i] = element(cell, "", contents[i]);
    return element("tr", "", cells);
  }

  private static String counted(long count, String what) {
    return count == 0 ? "" : number(count) + " " + what;
  }

  private static String number(long count) {
    return String.format(Locale.ROOT, "%,d", count);
  }

  private static String joined(String... parts) {
    List<String> present = new ArrayList<>();
    for (String part : parts) {
      if (!part.isEmpty()) present.add(part);
    }
    return String.join(", ", present);
  }

  private static String time(long millis) {
    // A damaged event log may hold a time outside of the calendar.
    return millis <= 0 || millis >= 1L << 47 ? "" : TIME.format(Instant.ofEpochMilli(millis));
  }

  private static String duration(double seconds) {
    if (seconds < 60) return String.format(Locale.ROOT, "%.1f s", Math.max(0, seconds));
    Duration whole = Duration.ofSeconds((long) seconds);
    if (seconds < 3600) return whole.toMinutes() + " min " + whole.toSecondsPart() + " s";
    return whole.toHours() + " h " + whole.toMinutesPart() + " min";
  }
}
