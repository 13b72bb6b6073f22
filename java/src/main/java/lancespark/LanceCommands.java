package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * Commands on Lance tables of Spark's session catalog that would lose data, or that would change
 * only the catalog.
 */
final class LanceCommands {
  /** Commands of Spark that make a name of a table or view, with the field of the name. */
  private static final Map<String, String> MAKERS =
      Map.of(
          "CreateDataSourceTableCommand", "table",
          "CreateDataSourceTableAsSelectCommand", "table",
          "CreateTableCommand", "table",
          "CreateTableLikeCommand", "targetTable",
          "SaveAsV1TableCommand", "tableDesc",
          "AlterTableRenameCommand", "newName",
          "CreateViewCommand", "name");

  /** Commands of Spark with IF NOT EXISTS, and the field with the clause. */
  private static final Map<String, String> CONDITIONAL =
      Map.of(
          "CreateDataSourceTableCommand", "ignoreIfExists",
          "CreateDataSourceTableAsSelectCommand", "mode",
          "CreateTableCommand", "ignoreIfExists",
          "CreateTableLikeCommand", "ifNotExists",
          "CreateViewCommand", "allowExisting");

  private LanceCommands() {}

  /** Tells whether a command has IF NOT EXISTS, and a Lance table has the name. */
  static boolean isNeedless(LogicalPlan plan) {
    String command = plan.getClass().getSimpleName();
    String field = CONDITIONAL.get(command);
    if (field == null) return false;
    Object value = SparkRelease.call(plan, field);
    boolean isConditional = Boolean.TRUE.equals(value) || "Ignore".equals(String.valueOf(value));
    return isConditional && existing(plan, MAKERS.get(command)) != null;
  }

  /** Returns the error of a refused command, or null. */
  static AnalysisException refusal(LogicalPlan plan) {
    String field = MAKERS.get(plan.getClass().getSimpleName());
    AnalysisException exists = field == null ? null : existing(plan, field);
    if (exists != null) return exists;
    if (plan instanceof ReplaceTableAsSelect || plan instanceof ReplaceTable) {
      LogicalPlan name = (LogicalPlan) SparkRelease.call(plan, "name");
      if (!inSessionCatalog(name)) return null;
      Identifier identifier = ((ResolvedIdentifier) name).identifier();
      if (identifier.namespace().length != 1) return null;
      Option<String> database = Option.apply(identifier.namespace()[0]);
      return replaceRefusal(new TableIdentifier(identifier.name(), database));
    }
    // `saveAsTable` with a format of Spark, such as the default, drops the table before the query
    // reads its rows, and makes another table.
    if (plan.getClass().getSimpleName().equals("SaveAsV1TableCommand")) {
      boolean overwrites = "Overwrite".equals(String.valueOf(SparkRelease.call(plan, "mode")));
      CatalogTable table = (CatalogTable) SparkRelease.call(plan, "tableDesc");
      return overwrites ? replaceRefusal(table.identifier()) : null;
    }
    if (plan instanceof CreateTableAsSelect || plan instanceof CreateTable) {
      return createRefusal(plan);
    }
    boolean altersColumns =
        plan instanceof AddColumns
            || plan instanceof DropColumns
            || plan instanceof RenameColumn
            || plan instanceof ReplaceColumns
            || plan.getClass().getSimpleName().startsWith("AlterColumn");
    return altersColumns ? alterRefusal((LogicalPlan) SparkRelease.call(plan, "table")) : null;
  }

  /** Spark's own commands do not see the Lance tables of {@link LanceSessionCatalog}. */
  private static AnalysisException existing(LogicalPlan plan, String field) {
    var catalogs = SparkRelease.Catalogs.of(SparkSession.active());
    if (!(catalogs.byName("spark_catalog") instanceof LanceSessionCatalog catalog)) return null;
    boolean isView = field.equals("name");
    if (isView && !"PersistedView".equals(String.valueOf(SparkRelease.call(plan, "viewType")))) {
      return null;
    }
    Object made = SparkRelease.call(plan, field);
    TableIdentifier name =
        made instanceof CatalogTable table ? table.identifier() : (TableIdentifier) made;
    TableIdentifier place =
        field.equals("newName") ? (TableIdentifier) SparkRelease.call(plan, "oldName") : name;
    String database =
        place.database().isDefined()
            ? place.database().get()
            : LanceSource.sessionCatalog().getCurrentDatabase();
    Identifier identifier = Identifier.of(new String[] {database}, name.table());
    if (!catalog.hasLance(identifier)) return null;
    return Errors.ofSpark(
        "TABLE_OR_VIEW_ALREADY_EXISTS",
        Map.of("relationName", "`" + database + "`.`" + name.table() + "`"));
  }

  private static AnalysisException createRefusal(LogicalPlan plan) {
    Object spec = SparkRelease.call(plan, "tableSpec");
    LogicalPlan name = (LogicalPlan) SparkRelease.call(plan, "name");
    if (!isLance((Option<?>) SparkRelease.call(spec, "provider"))) return null;
    if (!inSessionCatalog(name)) return null;
    refuseBorrowed(spec);
    var partitioning = (scala.collection.Seq<?>) SparkRelease.call(plan, "partitioning");
    if (partitioning.isEmpty()) return null;
    return refusal(
        ((ResolvedIdentifier) name).identifier().name(),
        "PARTITIONED BY, CLUSTERED BY, partitionBy or bucketBy, because its rows lie in fragments."
            + " Nothing was made. Leave the clause out, and sort the rows, or make an index, for"
            + " frequent lookups");
  }

  private static AnalysisException alterRefusal(LogicalPlan target) {
    if (!(target instanceof ResolvedTable resolved) || !isLance(resolved.table())) return null;
    String name = resolved.identifier().name();
    return refusal(
        name,
        "ALTER TABLE of columns, which changes Spark's catalog and not the table. Nothing was"
            + " changed. Change the table (lance_spark.connect(...).open_table(...).add_columns,"
            + " .alter_columns, .drop_columns, or pylance), then REFRESH TABLE "
            + name);
  }

  /** Checks CREATE TABLE .. USING lance OPTIONS (..). */
  private static void refuseBorrowed(Object tableSpec) {
    Map<String, String> options = new HashMap<>();
    Scala.map((scala.collection.Map<?, ?>) SparkRelease.call(tableSpec, "options"))
        .forEach((key, value) -> options.put((String) key, (String) value));
    Option<?> location = (Option<?>) SparkRelease.call(tableSpec, "location");
    if (location.isDefined()) options.put("path", (String) location.get());
    LanceCredentials.refuseBorrowed(options);
  }

  /** REFRESH TABLE: updates the columns in the entry of Spark's session catalog. */
  static void refresh(RefreshTable command) {
    if (!(command.child() instanceof ResolvedTable resolved) || !isLance(resolved.table())) return;
    Identifier identifier = resolved.identifier();
    Map<String, String> stored = LanceSource.catalogOptions(identifier);
    if (stored == null) return;
    Map<String, String> options = new HashMap<>();
    options.put("provider", LanceSource.NAME);
    options.put("path", stored.get("path"));
    stored.forEach((key, value) -> options.put("option." + key, value));
    StructType schema = GatewaySource.at(null).inferSchema(new CaseInsensitiveStringMap(options));
    LanceSource.sessionCatalog()
        .externalCatalog()
        .alterTableDataSchema(identifier.namespace()[0], identifier.name(), schema);
  }

  private static boolean inSessionCatalog(LogicalPlan name) {
    return name instanceof ResolvedIdentifier resolved
        && resolved.catalog().name().equals("spark_catalog");
  }

  private static boolean isLance(Table table) {
    return table instanceof PythonTable && table.name().equals(LanceSource.NAME);
  }

  private static boolean isLance(Option<?> provider) {
    return provider.isDefined() && LanceSource.NAME.equalsIgnoreCase((String) provider.get());
  }

  private static AnalysisException replaceRefusal(TableIdentifier name) {
    CatalogTable table = LanceSource.sessionTable(name);
    if (table == null || !isLance(table.provider())) return null;
    return refusal(
        name.table(),
        "REPLACE, which deletes the table with all of its versions before its new rows exist."
            + " Nothing was changed. Write INSERT OVERWRITE "
            + name.table()
            + " ..., or df.write.format('lance').mode('overwrite').save(path), which make a new"
            + " version; or DROP TABLE first");
  }

  private static AnalysisException refusal(String table, String operation) {
    return Errors.ofSpark(
        "UNSUPPORTED_FEATURE.TABLE_OPERATION",
        Map.of("tableName", "`" + table + "`", "operation", operation));
  }
}
