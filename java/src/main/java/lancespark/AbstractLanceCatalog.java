package lancespark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.*;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A folder of Lance tables as a catalog of Spark SQL, with the common methods of all releases of
 * Spark. Python runs the commands: lance_spark/sql.
 */
public abstract class AbstractLanceCatalog
    implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog, FunctionCatalog {
  private String name;

  /** Ignores the options of the session. Each command asks the registry with their origins. */
  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    LancePushdown.enable(org.apache.spark.sql.classic.SparkSession.active());
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String[] defaultNamespace() {
    return new String[0];
  }

  static String dotted(Identifier identifier) {
    Stream<String> namespace = Stream.of(identifier.namespace());
    return String.join(".", Stream.concat(namespace, Stream.of(identifier.name())).toList());
  }

  /** Runs a command in Python. A failure becomes an error of Spark. */
  Json run(String command, Identifier identifier, Map<String, ?> arguments) {
    try {
      return ask(command, identifier, arguments, null);
    } catch (PythonGateway.Failure failure) {
      throw Errors.thrown(Errors.ofCommand(command, failure));
    }
  }

  /** Runs a command in Python, with an object of the JVM or null. */
  Json ask(String command, Identifier identifier, Map<String, ?> arguments, Object object) {
    Json all =
        new Json(arguments).with("catalog", name).with("origins", LanceRegistry.origins(name));
    if (identifier != null) {
      all.with("namespace", identifier.namespace()).with("name", identifier.name());
    }
    return PythonGateway.call(command, all, object);
  }

  // Tables

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    return identifiers(namespace, inNamespace("list_tables", namespace, Map.of()));
  }

  private static Identifier[] identifiers(String[] namespace, Json answer) {
    return answer.texts("names").stream()
        .map(table -> Identifier.of(namespace, table))
        .toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    return load(identifier, new Json());
  }

  @Override
  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    return load(identifier, new Json().with("version", version));
  }

  @Override
  public Table loadTable(Identifier identifier, long timestamp) throws NoSuchTableException {
    return load(identifier, new Json().with("microseconds", timestamp));
  }

  @Override
  public Table loadTable(Identifier identifier, Set<TableWritePrivilege> privileges)
      throws NoSuchTableException {
    Json arguments = new Json();
    addBlobHandling(privileges, arguments);
    return load(identifier, arguments);
  }

  /** Inserted rows contain the bytes of blobs. Other statements use the location of the bytes. */
  static void addBlobHandling(Set<TableWritePrivilege> privileges, Json arguments) {
    boolean inserts =
        privileges.contains(TableWritePrivilege.INSERT)
            && !privileges.contains(TableWritePrivilege.UPDATE);
    if (!inserts) return;
    arguments.put("blob_handling", "bytes");
    // Spark also passes these privileges for `saveAsTable` before creating a table.
    arguments.put("may_create", true);
  }

  /** Refreshes Spark's cache of a changed table. Spark does so only after its own writes. */
  void refreshCaches(SparkSession session, Identifier identifier) {
    Stream<String> table =
        Stream.concat(Stream.of(identifier.namespace()), Stream.of(identifier.name()));
    List<String> parts = Stream.concat(Stream.of(name), table).toList();
    var classic = (org.apache.spark.sql.classic.SparkSession) session;
    classic.sharedState().cacheManager().recacheTableOrView(classic, Scala.seq(parts), false);
  }

  @Override
  public boolean tableExists(Identifier identifier) {
    return run("table_exists_in", identifier, Map.of()).isTrue("exists");
  }

  Table load(Identifier identifier, Json arguments) throws NoSuchTableException {
    Json addedColumns = EvolutionChanges.takeAdded(this, identifier);
    try {
      Json opened = ask("load_table", identifier, arguments, null);
      if (opened.get("metadata") != null) {
        return new LanceMetadataTable(name + "." + dotted(identifier), opened);
      }
      LanceTable table = SparkRelease.table(this, identifier, opened);
      table.addedColumns = addedColumns;
      return table;
    } catch (PythonGateway.Failure failure) {
      boolean isMissing = failure.kind.equals("TableNotFoundError");
      String[] namespace = identifier.namespace();
      boolean isMetadata = identifier.name().startsWith(LanceMetadataTable.PREFIX);
      if (isMissing && isMetadata && namespace.length > 0) {
        String[] table = Arrays.copyOf(namespace, namespace.length - 1);
        Identifier missing = Identifier.of(table, namespace[namespace.length - 1]);
        throw Errors.thrown(notFound(missing, failure));
      }
      if (isMissing && !isTakenForPath(identifier, arguments)) {
        throw new NoSuchTableException(identifier);
      }
      boolean isSimilar = failure.kind.equals("SimilarTableError");
      throw Errors.thrown(
          isMissing || isSimilar
              ? notFound(identifier, failure)
              : Errors.ofCommand("load", failure));
    }
  }

  /** Tells whether Spark would read the name of a missing table as a path of a data source. */
  private boolean isTakenForPath(Identifier identifier, Json arguments) {
    return name.equalsIgnoreCase(LanceSource.NAME)
        && identifier.namespace().length == 0
        && arguments.get("may_create") == null;
  }

  /**
   * Spark's own error of a missing table with a hint. Spark catches this error in a check for an
   * existing table.
   */
  private AnalysisException notFound(Identifier identifier, PythonGateway.Failure failure) {
    String table = "`" + name + "`.`" + dotted(identifier) + "`";
    return Errors.ofSpark(
        "TABLE_OR_VIEW_NOT_FOUND",
        Map.of(
            "relationName", table + " (" + failure.getMessage() + ")",
            "searchPath", "[`" + name + "`]"));
  }

  @Override
  public Table createTable(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return SparkRelease.table(this, identifier, create("create_table", identifier, info));
  }

  private Json create(String command, Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return create(command, identifier, info.schema(), info.partitions(), info.properties());
  }

  /**
   * CREATE TABLE .. LIKE, called by Spark 4.2 and later. Spark passes the columns of a table of
   * another catalog.
   */
  @SuppressWarnings("MissingOverride") // Spark 4.1 lacks the method
  public Table createTableLike(Identifier identifier, TableInfo info, Table like)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return like instanceof LanceTable table
        ? createLike(identifier, table, info.properties())
        : createTable(identifier, info);
  }

  /** Makes an empty table with the declaration of another table and additional properties. */
  private Table createLike(Identifier identifier, LanceTable like, Map<String, String> additional)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    LanceTable declared = LanceDeclaredTable.of(like);
    Map<String, String> properties = new HashMap<>(declared.properties());
    properties.putAll(additional);
    Json opened =
        create("create_table", identifier, declared.schema(), new Transform[0], properties);
    return SparkRelease.table(this, identifier, opened);
  }

  private Json create(
      String command,
      Identifier identifier,
      StructType schema,
      Transform[] partitions,
      Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    Json arguments =
        new Json()
            .with("schema", schema.json())
            .with("properties", properties)
            .with("partitions", Arrays.stream(partitions).map(Transform::describe).toList());
    try {
      return ask(command, identifier, arguments, null);
    } catch (PythonGateway.Failure failure) {
      switch (failure.kind) {
        case "TableExistsError" -> throw new TableAlreadyExistsException(identifier);
        case "NamespaceNotFoundError" -> throw new NoSuchNamespaceException(identifier.namespace());
        default -> throw Errors.thrown(Errors.ofCommand("create", failure));
      }
    }
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes)
      throws NoSuchTableException {
    EvolutionChanges evolution = EvolutionChanges.take(changes);
    String branch = evolution == null ? null : evolution.branch;
    Json arguments =
        new Json()
            .with("changes", Arrays.stream(changes).map(LanceTableChange::describe).toList())
            .with("branch", branch);
    Json altered = run("alter_table", identifier, arguments);
    Table table = load(identifier, branch == null ? new Json() : new Json().with("branch", branch));
    if (evolution != null) evolution.noteAdded(this, identifier, altered);
    return table;
  }

  @Override
  public boolean dropTable(Identifier identifier) {
    return run("drop_table", identifier, Map.of()).isTrue("dropped");
  }

  @Override
  public boolean purgeTable(Identifier identifier) {
    return run("drop_table", identifier, Map.of("purge", true)).isTrue("dropped");
  }

  @Override
  public void renameTable(Identifier source, Identifier target)
      throws NoSuchTableException, TableAlreadyExistsException {
    String[] namespace = target.namespace();
    // Spark passes the name of the statement, with the catalog if the statement has the catalog.
    if (namespace.length == source.namespace().length + 1 && namespace[0].equals(name())) {
      namespace = Arrays.copyOfRange(namespace, 1, namespace.length);
    }
    Json arguments = new Json().with("to_namespace", namespace).with("to_name", target.name());
    try {
      ask("rename_table", source, arguments, null);
    } catch (PythonGateway.Failure failure) {
      switch (failure.kind) {
        case "TableNotFoundError" -> throw new NoSuchTableException(source);
        case "TableExistsError" -> throw new TableAlreadyExistsException(target);
        default -> throw Errors.thrown(Errors.ofCommand("rename", failure));
      }
    }
  }

  // Tables of CREATE or REPLACE .. AS SELECT

  @Override
  public StagedTable stageCreate(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return new LanceStagedTable(this, identifier, create("stage_create", identifier, info));
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
      return new LanceStagedTable(this, identifier, create("stage_replace", identifier, info));
    } catch (TableAlreadyExistsException error) {
      throw new IllegalStateException(error);
    }
  }

  // Namespaces

  @Override
  public String[][] listNamespaces() {
    try {
      return listNamespaces(new String[0]);
    } catch (NoSuchNamespaceException error) {
      return new String[0][];
    }
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    return inNamespace("list_namespaces", namespace, Map.of()).texts("names").stream()
        .map(child -> Stream.concat(Stream.of(namespace), Stream.of(child)).toArray(String[]::new))
        .toArray(String[][]::new);
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    return hasFolder(namespace);
  }

  /** Tells whether a namespace of Lance tables exists. */
  final boolean hasFolder(String[] namespace) {
    try {
      inNamespace("load_namespace", namespace, Map.of());
      return true;
    } catch (NoSuchNamespaceException error) {
      return false;
    }
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    return inNamespace("load_namespace", namespace, Map.of()).options("properties");
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> properties)
      throws NamespaceAlreadyExistsException {
    if (hasFolder(namespace)) throw new NamespaceAlreadyExistsException(namespace);
    try {
      inNamespace("create_namespace", namespace, Map.of("properties", properties));
    } catch (NoSuchNamespaceException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes)
      throws NoSuchNamespaceException {
    List<String> properties = new ArrayList<>();
    for (NamespaceChange change : changes) {
      if (change instanceof NamespaceChange.SetProperty set) properties.add(set.property());
      if (change instanceof NamespaceChange.RemoveProperty gone) properties.add(gone.property());
    }
    inNamespace("alter_namespace", namespace, Map.of("properties", properties));
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    Json answer = inNamespace("drop_namespace", namespace, Map.of("cascade", cascade));
    if (answer.isTrue("not_empty")) throw new NonEmptyNamespaceException(namespace);
    return true;
  }

  private Json inNamespace(String command, String[] namespace, Map<String, ?> arguments)
      throws NoSuchNamespaceException {
    try {
      return ask(command, null, new Json(arguments).with("namespace", namespace), null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("NamespaceNotFoundError")) {
        throw new NoSuchNamespaceException(namespace);
      }
      throw Errors.thrown(Errors.ofCommand(command, failure));
    }
  }

  // Procedures

  @Override
  public UnboundProcedure loadProcedure(Identifier identifier) {
    return new LanceProcedure(this, run("load_procedure", identifier, Map.of()));
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    if (namespace.length != 1 || !namespace[0].equals("system")) return new Identifier[0];
    return identifiers(namespace, run("list_procedures", null, Map.of()));
  }

  // Functions

  /** Spark asks the current catalog for a name without a builtin or temporary function. */
  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return new Identifier[0];
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    throw new NoSuchFunctionException(identifier);
  }
}
