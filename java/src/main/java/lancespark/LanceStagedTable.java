package lancespark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;

/**
 * The table of CREATE or REPLACE .. AS SELECT. The commit of the write makes the table or its new
 * version.
 */
final class LanceStagedTable extends LanceTable implements StagedTable {
  private boolean hasQuery;

  LanceStagedTable(AbstractLanceCatalog catalog, Identifier identifier, Json opened) {
    super(catalog, identifier, opened);
  }

  /** The properties of the user, and the identity of the table for listeners of lineage. */
  @Override
  public Map<String, String> properties() {
    return opened.options("properties");
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    checkStatement("CREATE TABLE", info.options());
    hasQuery = true;
    return writeBuilder(info, opened.isTrue("replaces"));
  }

  /** REPLACE TABLE without a query makes an empty table. */
  @Override
  public void commitStagedChanges() {
    if (!hasQuery) catalog.run("replace_empty", identifier, opened);
    if (!opened.options("user_properties").isEmpty()) {
      catalog.run("keep_properties", identifier, opened);
    }
  }

  @Override
  public void abortStagedChanges() {}

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }
}
