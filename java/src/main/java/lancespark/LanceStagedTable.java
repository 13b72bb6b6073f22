package lancespark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;

/** A table that CREATE or REPLACE .. AS SELECT makes. The write's own commit makes it, or its new version, at once. */
final class LanceStagedTable extends LanceTable implements StagedTable {
  private boolean written;

  LanceStagedTable(AbstractLanceCatalog catalog, Identifier identifier, Map opened) {
    super(catalog, identifier, opened);
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    checkStatement("CREATE TABLE", info.options());
    written = true;
    return writeBuilder(info, Boolean.TRUE.equals(opened.get("replaces")));
  }

  /** REPLACE TABLE without a query leaves an empty table. */
  public void commitStagedChanges() {
    if (!written) catalog.run("replace_empty", identifier, opened);
    if (!((Map) opened.get("user_properties")).isEmpty()) catalog.run("keep_properties", identifier, opened);
  }

  public void abortStagedChanges() {}

  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }
}
