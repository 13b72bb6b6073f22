package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.*;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/** A folder of Lance tables as a catalog of Spark SQL, as far as all releases of Spark ask the same. Python does the work: lance_spark/sql. */
public abstract class AbstractLanceCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog {
  private String name;

  /** Options of the session are not kept: each command asks the registry, which also knows who has set them. */
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    try {
      LancePushdown.enable(org.apache.spark.sql.classic.SparkSession.active());
    } catch (Exception error) {
      Platform.throwException(error);
    }
  }

  public String name() {
    return name;
  }

  public String[] defaultNamespace() {
    return new String[0];
  }

  static String quoted(Identifier identifier) {
    StringBuilder text = new StringBuilder();
    String[] namespace = identifier.namespace();
    for (int i = 0; i < namespace.length; i++) text.append(namespace[i]).append('.');
    return text.append(identifier.name()).toString();
  }

  /** Has Python carry out a command; what goes wrong is an error of Spark's. */
  Map run(String command, Identifier identifier, Map arguments) {
    try {
      return ask(command, identifier, arguments, null);
    } catch (PythonGateway.Failure failure) {
      Platform.throwException(PythonGateway.error(command, failure));
      return null;
    }
  }

  Map ask(String command, Identifier identifier, Map arguments, Object given) {
    Map all = new LinkedHashMap(arguments);
    all.put("catalog", name);
    all.put("origins", LanceRegistry.origins(name));
    if (identifier != null) {
      all.put("namespace", identifier.namespace());
      all.put("name", identifier.name());
    }
    return PythonGateway.call(command, all, given);
  }

  // Tables

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    List names = (List) inNamespace("list_tables", namespace, new HashMap()).get("names");
    Identifier[] found = new Identifier[names.size()];
    for (int i = 0; i < found.length; i++) found[i] = Identifier.of(namespace, (String) names.get(i));
    return found;
  }

  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    return load(identifier, new HashMap());
  }

  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    Map moment = new HashMap();
    moment.put("version", version);
    return load(identifier, moment);
  }

  public Table loadTable(Identifier identifier, long timestamp) throws NoSuchTableException {
    Map moment = new HashMap();
    moment.put("microseconds", Long.valueOf(timestamp));
    return load(identifier, moment);
  }

  public Table loadTable(Identifier identifier, Set privileges) throws NoSuchTableException {
    Map arguments = new HashMap();
    takeBytes(privileges, arguments);
    return load(identifier, arguments);
  }

  /** Rows that are inserted hold the bytes of blobs, where those that are read, moved or merged say where these are. */
  static void takeBytes(Set privileges, Map arguments) {
    boolean inserts = privileges.contains(TableWritePrivilege.INSERT) && !privileges.contains(TableWritePrivilege.UPDATE);
    if (!inserts) return;
    arguments.put("blob_handling", "bytes");
    // Spark asks so for the table of `saveAsTable`, too, before it makes one.
    arguments.put("may_create", Boolean.TRUE);
  }

  /** Has Spark read anew what it has cached of a table that has changed, as it does by itself where its own writes change one. */
  void refreshCaches(org.apache.spark.sql.SparkSession session, Identifier identifier) {
    List parts = new ArrayList();
    parts.add(name);
    parts.addAll(java.util.Arrays.asList(identifier.namespace()));
    parts.add(identifier.name());
    org.apache.spark.sql.classic.SparkSession classic = (org.apache.spark.sql.classic.SparkSession) session;
    classic.sharedState().cacheManager().recacheTableOrView(classic, Reflection.seq(parts), false);
  }

  public boolean tableExists(Identifier identifier) {
    return Boolean.TRUE.equals(run("table_exists", identifier, new HashMap()).get("exists"));
  }

  final Table load(Identifier identifier, Map arguments) throws NoSuchTableException {
    try {
      Map opened = ask("load_table", identifier, arguments, null);
      if (opened.get("metadata") != null) return new LanceMetadataTable(name + "." + quoted(identifier), opened);
      return SparkRelease.table(this, identifier, opened);
    } catch (PythonGateway.Failure failure) {
      boolean missing = failure.kind.equals("TableNotFoundError");
      if (missing && !isTakenForPath(identifier, arguments)) throw new NoSuchTableException(identifier);
      boolean similar = failure.kind.equals("SimilarTableError");
      Platform.throwException(missing || similar ? notFound(identifier, failure) : PythonGateway.error("load", failure));
      return null;
    }
  }

  /** Whether Spark would take the name of a missing table for a path that the data source of the catalog's name reads. */
  private boolean isTakenForPath(Identifier identifier, Map arguments) {
    return name.equalsIgnoreCase(LanceSource.NAME) && identifier.namespace().length == 0 && arguments.get("may_create") == null;
  }

  /** Spark's own error of a missing table, with a hint. Spark takes it for an answer where it asks whether a table exists. */
  private AnalysisException notFound(Identifier identifier, PythonGateway.Failure failure) {
    Map parameters = new HashMap();
    parameters.put("relationName", "`" + name + "`.`" + quoted(identifier) + "` (" + failure.getMessage() + ")");
    parameters.put("searchPath", "[`" + name + "`]");
    return new AnalysisException("TABLE_OR_VIEW_NOT_FOUND", scala.collection.immutable.Map$.MODULE$.from(scala.jdk.javaapi.CollectionConverters.asScala(parameters)));
  }

  public Table createTable(Identifier identifier, TableInfo info) throws TableAlreadyExistsException, NoSuchNamespaceException {
    Map opened = creating("create_table", identifier, info.schema(), info.partitions(), info.properties());
    return SparkRelease.table(this, identifier, opened);
  }

  /** Makes an empty table that is declared as another one is, with the properties that a statement adds. */
  final Table createLike(Identifier identifier, LanceTable like, Map given) throws TableAlreadyExistsException, NoSuchNamespaceException {
    LanceTable declared = LanceDeclaredTable.of(like);
    Map properties = new HashMap(declared.properties());
    properties.putAll(given);
    return SparkRelease.table(this, identifier, creating("create_table", identifier, declared.schema(), new Transform[0], properties));
  }

  private Map creating(String command, Identifier identifier, StructType schema, Transform[] partitions, Map properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    Map arguments = new HashMap();
    arguments.put("schema", schema.json());
    arguments.put("properties", properties);
    List described = new ArrayList();
    for (int i = 0; i < partitions.length; i++) described.add(partitions[i].describe());
    arguments.put("partitions", described);
    try {
      return ask(command, identifier, arguments, null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("TableExistsError")) throw new TableAlreadyExistsException(identifier);
      if (failure.kind.equals("NamespaceNotFoundError")) throw new NoSuchNamespaceException(identifier.namespace());
      Platform.throwException(PythonGateway.error("create", failure));
      return null;
    }
  }

  public Table alterTable(Identifier identifier, TableChange... changes) throws NoSuchTableException {
    List described = new ArrayList();
    for (int i = 0; i < changes.length; i++) described.add(LanceTableChange.described(changes[i]));
    String branch = LanceBranchChanges.branchOf(changes);
    Map arguments = new HashMap();
    arguments.put("changes", described);
    arguments.put("branch", branch);
    run("alter_table", identifier, arguments);
    Map opened = new HashMap();
    if (branch != null) opened.put("branch", branch);
    return load(identifier, opened);
  }

  /** Whether this release of Spark opens the branch that a statement names. */
  boolean opensBranches() {
    return false;
  }

  public boolean dropTable(Identifier identifier) {
    return Boolean.TRUE.equals(run("drop_table", identifier, new HashMap()).get("dropped"));
  }

  public boolean purgeTable(Identifier identifier) {
    return dropTable(identifier);
  }

  public void renameTable(Identifier old, Identifier renamed) throws NoSuchTableException, TableAlreadyExistsException {
    Map arguments = new HashMap();
    String[] to = renamed.namespace();
    // Spark hands over the name as it was written, with the catalog's where that was.
    if (to.length == old.namespace().length + 1 && to[0].equals(name())) to = (String[]) java.util.Arrays.copyOfRange(to, 1, to.length);
    arguments.put("to_namespace", to);
    arguments.put("to_name", renamed.name());
    try {
      ask("rename_table", old, arguments, null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("TableNotFoundError")) throw new NoSuchTableException(old);
      if (failure.kind.equals("TableExistsError")) throw new TableAlreadyExistsException(renamed);
      Platform.throwException(PythonGateway.error("rename", failure));
    }
  }

  // Tables made or replaced by a query

  public StagedTable stageCreate(Identifier identifier, TableInfo info) throws TableAlreadyExistsException, NoSuchNamespaceException {
    return staged("stage_create", identifier, info);
  }

  public StagedTable stageReplace(Identifier identifier, TableInfo info) throws NoSuchNamespaceException, NoSuchTableException {
    if (!tableExists(identifier)) throw new NoSuchTableException(identifier);
    return stageCreateOrReplace(identifier, info);
  }

  public StagedTable stageCreateOrReplace(Identifier identifier, TableInfo info) throws NoSuchNamespaceException {
    try {
      return staged("stage_replace", identifier, info);
    } catch (TableAlreadyExistsException error) {
      throw new IllegalStateException(error);
    }
  }

  private StagedTable staged(String command, Identifier identifier, TableInfo info) throws TableAlreadyExistsException, NoSuchNamespaceException {
    Map opened = creating(command, identifier, info.schema(), info.partitions(), info.properties());
    return new LanceStagedTable(this, identifier, opened);
  }

  // Namespaces

  public String[][] listNamespaces() {
    try {
      return listNamespaces(new String[0]);
    } catch (NoSuchNamespaceException error) {
      return new String[0][];
    }
  }

  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    List names = (List) inNamespace("list_namespaces", namespace, new HashMap()).get("names");
    String[][] found = new String[names.size()][];
    for (int i = 0; i < found.length; i++) {
      found[i] = new String[namespace.length + 1];
      System.arraycopy(namespace, 0, found[i], 0, namespace.length);
      found[i][namespace.length] = (String) names.get(i);
    }
    return found;
  }

  public boolean namespaceExists(String[] namespace) {
    try {
      loadNamespaceMetadata(namespace);
      return true;
    } catch (NoSuchNamespaceException error) {
      return false;
    }
  }

  public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    return (Map) inNamespace("load_namespace", namespace, new HashMap()).get("properties");
  }

  public void createNamespace(String[] namespace, Map properties) throws NamespaceAlreadyExistsException {
    if (namespaceExists(namespace)) throw new NamespaceAlreadyExistsException(namespace);
    Map arguments = new HashMap();
    arguments.put("properties", properties);
    try {
      inNamespace("create_namespace", namespace, arguments);
    } catch (NoSuchNamespaceException error) {
      throw new IllegalStateException(error);
    }
  }

  public void alterNamespace(String[] namespace, NamespaceChange... changes) throws NoSuchNamespaceException {
    inNamespace("alter_namespace", namespace, new HashMap());
  }

  public boolean dropNamespace(String[] namespace, boolean cascade) throws NoSuchNamespaceException, NonEmptyNamespaceException {
    Map arguments = new HashMap();
    arguments.put("cascade", Boolean.valueOf(cascade));
    Map answer = inNamespace("drop_namespace", namespace, arguments);
    if (Boolean.TRUE.equals(answer.get("not_empty"))) throw new NonEmptyNamespaceException(namespace);
    return true;
  }

  private Map inNamespace(String command, String[] namespace, Map arguments) throws NoSuchNamespaceException {
    Map all = new HashMap(arguments);
    all.put("namespace", namespace);
    try {
      return ask(command, null, all, null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("NamespaceNotFoundError")) throw new NoSuchNamespaceException(namespace);
      Platform.throwException(PythonGateway.error(command, failure));
      return null;
    }
  }

  // Procedures

  public UnboundProcedure loadProcedure(Identifier identifier) {
    return new LanceProcedure(this, run("load_procedure", identifier, new HashMap()));
  }

  public Identifier[] listProcedures(String[] namespace) {
    if (namespace.length != 1 || !namespace[0].equals("system")) return new Identifier[0];
    List names = (List) run("list_procedures", null, new HashMap()).get("names");
    Identifier[] found = new Identifier[names.size()];
    for (int i = 0; i < found.length; i++) found[i] = Identifier.of(namespace, (String) names.get(i));
    return found;
  }
}
