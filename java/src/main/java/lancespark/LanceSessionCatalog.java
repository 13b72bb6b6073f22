package lancespark;

import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.analysis.*;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.internal.SQLConf;

/**
 * Spark's session catalog with Lance tables: `spark.sql.catalog.spark_catalog =
 * lancespark.LanceSessionCatalog`. CREATE TABLE .. USING lance makes a table in the folder of its
 * database below the catalog's root, and with a LOCATION an entry of Spark's catalog for an
 * existing table. All databases, functions and other tables are those of Spark.
 */
public final class LanceSessionCatalog extends LanceCatalog implements CatalogExtension {
  private TableCatalog tables;
  private SupportsNamespaces databases;
  private FunctionCatalog functions;

  /** Spark calls this method once, before all others, with its own session catalog. */
  @Override
  public void setDelegateCatalog(CatalogPlugin delegate) {
    tables = (TableCatalog) delegate;
    databases = (SupportsNamespaces) delegate;
    functions = (FunctionCatalog) delegate;
  }

  @Override
  public String[] defaultNamespace() {
    return databases.defaultNamespace();
  }

  @Override
  public Set<TableCatalogCapability> capabilities() {
    return tables.capabilities();
  }

  // Tables: of Lance, else of Spark

  @Override
  Table load(Identifier identifier, Json arguments) throws NoSuchTableException {
    if (mayBeLance(identifier)) {
      try {
        // Without the hint of Lance at names in another case: Spark may have the table.
        return super.load(own(identifier), new Json(arguments).with("may_create", true));
      } catch (NoSuchTableException error) {
        // Spark's catalog has the table, or raises the same error.
      }
    }
    Table entry = tables.loadTable(identifier);
    Identifier location = location(identifier, entry);
    if (location != null) return super.load(location, arguments);
    if (arguments.get("version") != null) {
      return tables.loadTable(identifier, String.valueOf(arguments.get("version")));
    }
    return arguments.get("microseconds") instanceof Number time
        ? tables.loadTable(identifier, time.longValue())
        : entry;
  }

  /** Returns the path of an entry of Spark's catalog for a Lance table, or null for others. */
  private static Identifier location(Identifier identifier, Table entry) {
    Map<String, String> properties = entry.properties();
    if (!hasLanceProvider(properties)) return null;
    String path = properties.get(TableCatalog.PROP_LOCATION);
    if (path == null) return null;
    boolean hasOptions =
        properties.keySet().stream()
            .map(key -> key.substring(key.startsWith("option.") ? "option.".length() : 0))
            .anyMatch(key -> key.startsWith("storage.") || LanceSource.STATE_OPTIONS.contains(key));
    if (hasOptions) {
      throw refused(
          identifier,
          "OPTIONS of a Lance table in the session catalog. Nothing was done. Read the table by its"
              + " path with these options, or DROP TABLE the entry and make it again without them");
    }
    return Identifier.of(new String[0], path);
  }

  /** Returns the name of a Lance table: its own, or the path of its entry; else null. */
  Identifier lanceName(Identifier identifier) {
    if (hasLance(identifier)) return own(identifier);
    try {
      return location(identifier, tables.loadTable(identifier));
    } catch (NoSuchTableException error) {
      return null;
    }
  }

  /**
   * Tells whether Lance may have the table. A path without a namespace is a path of Lance, and
   * ``parquet.`/data/files` `` is a path of Spark.
   */
  private static boolean mayBeLance(Identifier identifier) {
    return identifier.name().contains("/") == (identifier.namespace().length == 0);
  }

  /**
   * Returns the name of a Lance table as Spark stores names: in lower case, unless the session
   * distinguishes cases. A path stays.
   */
  private static Identifier own(Identifier identifier) {
    boolean isPath = identifier.namespace().length == 0;
    if (isPath || SQLConf.get().caseSensitiveAnalysis()) return identifier;
    return Identifier.of(lowerCase(identifier.namespace()), lowerCase(identifier.name())[0]);
  }

  private static String[] lowerCase(String... names) {
    return Stream.of(names).map(name -> name.toLowerCase(Locale.ROOT)).toArray(String[]::new);
  }

  private static String[] ownFolder(String[] namespace) {
    return SQLConf.get().caseSensitiveAnalysis() ? namespace : lowerCase(namespace);
  }

  /** Tells whether the name is a Lance table of the catalog's own folder. */
  boolean hasLance(Identifier identifier) {
    return mayBeLance(identifier) && super.tableExists(own(identifier));
  }

  /** Tells whether DROP TABLE is for Spark: not for a Lance table, nor for the rest of one. */
  private boolean isOfSpark(Identifier identifier) {
    return !hasLance(identifier) && (!mayBeLance(identifier) || tables.tableExists(identifier));
  }

  @Override
  public boolean tableExists(Identifier identifier) {
    return hasLance(identifier) || tables.tableExists(identifier);
  }

  @Override
  public void invalidateTable(Identifier identifier) {
    tables.invalidateTable(identifier);
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    Stream<Identifier> ofSpark = Stream.of(tables.listTables(namespace));
    String[] folder = ownFolder(namespace);
    Stream<Identifier> ofLance =
        hasFolder(folder)
            ? Stream.of(super.listTables(folder)).filter(table -> own(table).equals(table))
            : Stream.of();
    return Stream.concat(ofSpark, ofLance).distinct().toArray(Identifier[]::new);
  }

  @Override
  public Table createTable(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    if (!isOwn(info)) return createEntry(identifier, info);
    prepare(identifier, info);
    return super.createTable(own(identifier), info);
  }

  /** CREATE TABLE .. USING lance LOCATION makes an entry for a table that exists. */
  private Table createEntry(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    if (hasLance(identifier)) throw new TableAlreadyExistsException(identifier);
    String path = info.properties().get(TableCatalog.PROP_LOCATION);
    boolean isLance = hasLanceProvider(info.properties());
    if (isLance && !super.tableExists(Identifier.of(new String[0], path))) {
      throw refused(
          identifier,
          "a LOCATION without a Lance table. Nothing was made. Leave the LOCATION out, or write the"
              + " table first: df.write.format('lance').save(path)");
    }
    return tables.createTable(identifier, info);
  }

  /** CREATE TABLE .. LIKE, called by Spark 4.2 and later. */
  @Override
  public Table createTableLike(Identifier identifier, TableInfo info, Table like)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    if (!(like instanceof LanceTable)) return createTable(identifier, info);
    prepare(identifier, info);
    return super.createTableLike(own(identifier), info, like);
  }

  @Override
  public StagedTable stageCreate(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    prepareStaged(identifier, info);
    return super.stageCreate(own(identifier), info);
  }

  @Override
  public StagedTable stageReplace(Identifier identifier, TableInfo info)
      throws NoSuchNamespaceException, NoSuchTableException {
    if (!tableExists(identifier)) throw new NoSuchTableException(identifier);
    return stageCreateOrReplace(identifier, info);
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier identifier, TableInfo info)
      throws NoSuchNamespaceException {
    try {
      prepareStaged(identifier, info);
    } catch (TableAlreadyExistsException error) {
      throw refused(
          identifier,
          "REPLACE TABLE .. USING lance, because Spark's own catalog has a table of this name."
              + " Nothing was changed. DROP TABLE it first, or choose another name");
    }
    return super.stageCreateOrReplace(own(identifier), info);
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes)
      throws NoSuchTableException {
    Identifier name = lanceName(identifier);
    return name == null ? tables.alterTable(identifier, changes) : super.alterTable(name, changes);
  }

  @Override
  public boolean dropTable(Identifier identifier) {
    return isOfSpark(identifier) ? tables.dropTable(identifier) : super.dropTable(own(identifier));
  }

  @Override
  public boolean purgeTable(Identifier identifier) {
    return isOfSpark(identifier)
        ? tables.purgeTable(identifier)
        : super.purgeTable(own(identifier));
  }

  @Override
  public void renameTable(Identifier source, Identifier target)
      throws NoSuchTableException, TableAlreadyExistsException {
    if (!hasLance(source)) {
      if (hasLance(target)) throw new TableAlreadyExistsException(target);
      tables.renameTable(source, target);
      return;
    }
    if (tables.tableExists(target)) throw new TableAlreadyExistsException(target);
    super.renameTable(own(source), own(target));
  }

  /** Tells whether CREATE TABLE makes a Lance table in the catalog's own folder. */
  private static boolean isOwn(TableInfo info) {
    return hasLanceProvider(info.properties())
        && !info.properties().containsKey(TableCatalog.PROP_LOCATION);
  }

  private static boolean hasLanceProvider(Map<String, String> properties) {
    String provider = properties.getOrDefault(TableCatalog.PROP_PROVIDER, "");
    return provider.toLowerCase(Locale.ROOT).equals(LanceSource.NAME);
  }

  private void prepareStaged(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    if (!isOwn(info)) {
      throw refused(
          identifier,
          "AS SELECT, and REPLACE TABLE, of a table that is not a Lance table of the catalog's own"
              + " folder. Nothing was changed. Write CREATE TABLE, then INSERT INTO; or leave the"
              + " LOCATION out");
    }
    prepare(identifier, info);
  }

  /** Checks a new Lance table, and makes the folder of its database. */
  private void prepare(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    if (Arrays.stream(info.columns()).anyMatch(LanceSessionCatalog::hasDefault)) {
      throw refused(
          identifier, "DEFAULT, GENERATED and IDENTITY columns. Leave them out: Lance has none");
    }
    if (tables.tableExists(identifier)) throw new TableAlreadyExistsException(identifier);
    String[] database = identifier.namespace();
    if (!databases.namespaceExists(database)) throw new NoSuchNamespaceException(database);
    String[] folder = ownFolder(database);
    if (hasFolder(folder)) return;
    try {
      super.createNamespace(folder, Map.of());
    } catch (NamespaceAlreadyExistsException error) {
      // Another session has made the folder.
    }
  }

  private static boolean hasDefault(Column column) {
    return column.defaultValue() != null
        || column.generationExpression() != null
        || column.identityColumnSpec() != null;
  }

  private static RuntimeException refused(Identifier identifier, String operation) {
    return Errors.thrown(
        Errors.ofSpark(
            "UNSUPPORTED_FEATURE.TABLE_OPERATION",
            Map.of("tableName", "`" + dotted(identifier) + "`", "operation", operation)));
  }

  // Databases: of Spark

  @Override
  public String[][] listNamespaces() {
    try {
      return databases.listNamespaces();
    } catch (NoSuchNamespaceException error) {
      return new String[0][];
    }
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    return databases.listNamespaces(namespace);
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    return databases.namespaceExists(namespace);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    return databases.loadNamespaceMetadata(namespace);
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> properties)
      throws NamespaceAlreadyExistsException {
    databases.createNamespace(namespace, properties);
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes)
      throws NoSuchNamespaceException {
    databases.alterNamespace(namespace, changes);
  }

  /** Drops Spark's database first, because Spark refuses to drop some, such as the default. */
  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    String[] folder = ownFolder(namespace);
    Identifier[] ofLance = hasFolder(folder) ? super.listTables(folder) : new Identifier[0];
    if (ofLance.length > 0 && !cascade) throw new NonEmptyNamespaceException(namespace);
    for (Identifier table : ofLance) {
      if (!own(table).equals(table)) {
        throw refused(
            table,
            "DROP DATABASE .. CASCADE, because it has capitals in its name and is not in this"
                + " catalog. Nothing was dropped. Move or drop it with lance_spark.connect first");
      }
    }
    boolean isDropped = databases.dropNamespace(namespace, cascade);
    if (isDropped && hasFolder(folder)) super.dropNamespace(folder, cascade);
    return isDropped;
  }

  // Functions: of Spark

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    try {
      return functions.listFunctions(namespace);
    } catch (NoSuchNamespaceException error) {
      return new Identifier[0];
    }
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    return functions.loadFunction(identifier);
  }

  @Override
  public boolean functionExists(Identifier identifier) {
    return functions.functionExists(identifier);
  }
}
