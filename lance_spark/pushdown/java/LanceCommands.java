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
import org.apache.spark.sql.classic.SparkSession;
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
      if (!isLanceTable(identifier)) return null;
      return error(identifier, replacing(identifier.name()));
    }
    if (plan instanceof CreateTableAsSelect || plan instanceof CreateTable) {
      scala.Option provider = (scala.Option) Reflection.call(Reflection.call(plan, "tableSpec"), "provider");
      boolean ours = provider.isDefined() && LanceSource.NAME.equalsIgnoreCase((String) provider.get());
      LogicalPlan name = (LogicalPlan) Reflection.call(plan, "name");
      if (!ours || !inSessionCatalog(name)) return null;
      if (((scala.collection.Seq) Reflection.call(plan, "partitioning")).isEmpty()) {
        LanceDrops.watch((SparkSession) SparkSession.active());
        return null;
      }
      return error(((ResolvedIdentifier) name).identifier(), "PARTITIONED BY, CLUSTERED BY, partitionBy or bucketBy: its rows lie in fragments"
          + " - nothing was made - leave them out; sort the rows, or make an index, for what is often looked up");
    }
    if (plan instanceof AddColumns || plan instanceof DropColumns || plan instanceof RenameColumn || plan instanceof ReplaceColumns
        || plan.getClass().getSimpleName().startsWith("AlterColumn")) {
      LogicalPlan table = (LogicalPlan) Reflection.call(plan, "table");
      if (!(table instanceof ResolvedTable) || !isLance(((ResolvedTable) table).table())) return null;
      return error(((ResolvedTable) table).identifier(), "ALTER TABLE of columns, which changes Spark's catalog and not the table"
          + " - nothing was changed - change the table (lance_spark.connect(...).open_table(...).add_columns, .alter_columns,"
          + " .drop_columns, or pylance), then REFRESH TABLE " + ((ResolvedTable) table).identifier().name());
    }
    return null;
  }

  /** Says why a table is not replaced. */
  static String replacing(String table) {
    return "REPLACE, which deletes the table with all of its versions before its new rows are there"
        + " - nothing was changed - write INSERT OVERWRITE " + table + " ..., or"
        + " df.write.format('lance').mode('overwrite').save(path), which make a new version; or DROP TABLE first";
  }

  static boolean isLance(CatalogTable table) {
    return table.provider().isDefined() && LanceSource.NAME.equalsIgnoreCase((String) table.provider().get());
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

  private static boolean isLanceTable(Identifier identifier) throws Exception {
    if (identifier.namespace().length != 1) return false;
    SessionCatalog catalog = LanceSource.sessionCatalog();
    TableIdentifier name = new TableIdentifier(identifier.name(), new scala.Some(identifier.namespace()[0]));
    return catalog.tableExists(name) && isLance((CatalogTable) catalog.getTableMetadata(name));
  }

  private static AnalysisException error(Identifier table, String operation) {
    Map parameters = new HashMap();
    parameters.put("tableName", "`" + table.name() + "`");
    parameters.put("operation", operation);
    return new AnalysisException("UNSUPPORTED_FEATURE.TABLE_OPERATION", scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(parameters)));
  }
}
