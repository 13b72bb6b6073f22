package lancespark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/** Commands on Lance tables of Spark's session catalog that would lose data, or change the catalog and not the table. */
final class LanceCommands {
  private LanceCommands() {}

  /** Returns why a command must not run, or null. */
  static AnalysisException refusal(LogicalPlan plan) throws Exception {
    if (plan instanceof ReplaceTableAsSelect || plan instanceof ReplaceTable) {
      LogicalPlan name = (LogicalPlan) Reflection.call(plan, "name");
      if (!inSessionCatalog(name)) return null;
      Identifier identifier = ((ResolvedIdentifier) name).identifier();
      if (identifier.namespace().length != 1) return null;
      return isLanceTable(new TableIdentifier(identifier.name(), new scala.Some(identifier.namespace()[0]))) ? replacing(identifier.name()) : null;
    }
    // `saveAsTable` with a format of Spark's own, such as its default: it drops the table, whose rows the query may want to read, and makes another.
    if (plan.getClass().getSimpleName().equals("SaveAsV1TableCommand") && "Overwrite".equals(String.valueOf(Reflection.call(plan, "mode")))) {
      TableIdentifier name = ((CatalogTable) Reflection.call(plan, "tableDesc")).identifier();
      return isLanceTable(name) ? replacing(name.table()) : null;
    }
    if (plan instanceof CreateTableAsSelect || plan instanceof CreateTable) {
      scala.Option provider = (scala.Option) Reflection.call(Reflection.call(plan, "tableSpec"), "provider");
      boolean ours = provider.isDefined() && LanceSource.NAME.equalsIgnoreCase((String) provider.get());
      LogicalPlan name = (LogicalPlan) Reflection.call(plan, "name");
      if (ours && inSessionCatalog(name)) refuseBorrowed(Reflection.call(plan, "tableSpec"));
      if (!ours || !inSessionCatalog(name) || ((scala.collection.Seq) Reflection.call(plan, "partitioning")).isEmpty()) return null;
      return error(((ResolvedIdentifier) name).identifier().name(), "PARTITIONED BY, CLUSTERED BY, partitionBy or bucketBy: its rows lie in fragments"
          + " - nothing was made - leave them out; sort the rows, or make an index, for what is often looked up");
    }
    if (plan instanceof AddColumns || plan instanceof DropColumns || plan instanceof RenameColumn || plan instanceof ReplaceColumns
        || plan.getClass().getSimpleName().startsWith("AlterColumn")) {
      LogicalPlan table = (LogicalPlan) Reflection.call(plan, "table");
      if (!(table instanceof ResolvedTable) || !isLance(((ResolvedTable) table).table())) return null;
      return error(((ResolvedTable) table).identifier().name(), "ALTER TABLE of columns, which changes Spark's catalog and not the table"
          + " - nothing was changed - change the table (lance_spark.connect(...).open_table(...).add_columns, .alter_columns,"
          + " .drop_columns, or pylance), then REFRESH TABLE " + ((ResolvedTable) table).identifier().name());
    }
    return null;
  }

  /** CREATE TABLE .. USING lance OPTIONS (..). */
  private static void refuseBorrowed(Object tableSpec) throws Exception {
    Map options = new HashMap(Reflection.map((scala.collection.Map) Reflection.call(tableSpec, "options")));
    scala.Option location = (scala.Option) Reflection.call(tableSpec, "location");
    if (location.isDefined()) options.put("path", location.get());
    LanceCredentials.refuseBorrowed(options);
  }

  /** REFRESH TABLE: gives the catalog's entry the columns that the table has now. */
  static void refresh(RefreshTable command) throws Exception {
    if (!(command.child() instanceof ResolvedTable) || !isLance(((ResolvedTable) command.child()).table())) return;
    Identifier identifier = ((ResolvedTable) command.child()).identifier();
    Map stored = LanceSource.catalogOptions(identifier);
    if (stored == null) return;
    Map created = new HashMap();
    created.put("provider", LanceSource.NAME);
    created.put("path", stored.get("path"));
    Iterator entries = stored.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      created.put("option." + entry.getKey(), entry.getValue());
    }
    PythonDataSourceV2 provider = new PythonDataSourceV2();
    provider.setShortName(LanceSource.NAME);
    StructType now = provider.inferSchema(new CaseInsensitiveStringMap(created));
    LanceSource.sessionCatalog().externalCatalog().alterTableDataSchema(identifier.namespace()[0], identifier.name(), now);
  }

  private static boolean inSessionCatalog(LogicalPlan name) {
    return name instanceof ResolvedIdentifier && ((ResolvedIdentifier) name).catalog().name().equals("spark_catalog");
  }

  private static boolean isLance(Table table) {
    return table instanceof PythonTable && table.name().equals(LanceSource.NAME);
  }

  private static boolean isLanceTable(TableIdentifier name) throws Exception {
    SessionCatalog catalog = LanceSource.sessionCatalog();
    if (!catalog.tableExists(name)) return false;
    scala.Option provider = ((CatalogTable) catalog.getTableMetadata(name)).provider();
    return provider.isDefined() && LanceSource.NAME.equalsIgnoreCase((String) provider.get());
  }

  private static AnalysisException replacing(String table) {
    return error(table, "REPLACE, which deletes the table with all of its versions before its new rows are there"
        + " - nothing was changed - write INSERT OVERWRITE " + table + " ..., or"
        + " df.write.format('lance').mode('overwrite').save(path), which make a new version; or DROP TABLE first");
  }

  private static AnalysisException error(String table, String operation) {
    Map parameters = new HashMap();
    parameters.put("tableName", "`" + table + "`");
    parameters.put("operation", operation);
    return new AnalysisException("UNSUPPORTED_FEATURE.TABLE_OPERATION", scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(parameters)));
  }
}
