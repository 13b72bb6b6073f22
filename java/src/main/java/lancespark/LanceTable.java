package lancespark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.IndexAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchIndexException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.index.SupportsIndex;
import org.apache.spark.sql.connector.catalog.index.TableIndex;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.Product;

/**
 * A version of a table of the catalog. Extends Spark's own table of a Python data source by row
 * columns, indexes, and statements that change rows.
 */
public class LanceTable extends PythonTable
    implements SupportsMetadataColumns,
        SupportsRowLevelOperations,
        SupportsDeleteV2,
        SupportsIndex {
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.sql");
  final AbstractLanceCatalog catalog;
  final Identifier identifier;

  /** Python's answer to the command `load_table`: lance_spark/sql/catalog/tables.py. */
  final Json opened;

  /** Columns added by schema evolution for the statement of this table, or null. */
  Json addedColumns;

  LanceTable(AbstractLanceCatalog catalog, Identifier identifier, Json opened) {
    super(GatewaySource.at(null), LanceSource.NAME, schemaOf(opened));
    this.catalog = catalog;
    this.identifier = identifier;
    this.opened = opened;
  }

  static StructType schemaOf(Json opened) {
    return (StructType) DataType.fromJson(opened.text("schema"));
  }

  @Override
  public String name() {
    return catalog.name() + "." + AbstractLanceCatalog.dotted(identifier);
  }

  @Override
  public String id() {
    return opened.text("id");
  }

  @Override
  public String version() {
    return String.valueOf(opened.get("version"));
  }

  /** Tells whether a statement selected an older version. Called by Python, too. */
  public boolean isTravelled() {
    return opened.isTrue("travelled");
  }

  /** Returns the branch of this version, or null for the main branch. */
  String branch() {
    return opened.object("write").text("branch");
  }

  /** Options of the Python data source for this version. */
  Map<String, String> readOptions() {
    return opened.options("read");
  }

  /** Tells whether a column holds blobs. */
  boolean isBlob(String column) {
    return opened.texts("blobs").stream().anyMatch(column::equalsIgnoreCase);
  }

  String pin() {
    return opened.text("pin");
  }

  /** Asks Python for the properties, also for DESCRIBE. */
  @Override
  public Map<String, String> properties() {
    return pin() == null ? new HashMap<>() : propertiesBy("properties");
  }

  final Map<String, String> propertiesBy(String command) {
    return catalog.run(command, identifier, new Json().with("pin", pin())).options("properties");
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> all = new HashSet<>(super.capabilities());
    all.add(TableCapability.OVERWRITE_BY_FILTER);
    all.add(TableCapability.OVERWRITE_DYNAMIC);
    return all;
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    return opened.objects("metadata_columns").stream()
        .map(RowColumn::of)
        .toArray(MetadataColumn[]::new);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    Map<String, String> query = options.asCaseSensitiveMap();
    return new TableScan(
        LanceSource.ofVersion(query, readOptions()), schema(), () -> streamOptions(query));
  }

  /** Returns the options of a stream, which selects its own versions. */
  private Map<String, String> streamOptions(Map<String, String> query) {
    if (isTravelled()) {
      throw Errors.thrown(
          refusal("stream", "Name the table itself, and give the stream a startingVersion."));
    }
    Map<String, String> all = LanceSource.ofVersion(query, readOptions());
    all.remove("version");
    return all;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return writeBuilder(info, false);
  }

  /** Returns a builder of a write. A staged table can replace the present rows. */
  final WriteBuilder writeBuilder(LogicalWriteInfo info, boolean replaces) {
    PythonWriteBuilder python = (PythonWriteBuilder) super.newWriteBuilder(withLocation(info));
    return new LanceWriteBuilder(python, replaces, this);
  }

  /**
   * Drops the columns added by schema evolution for a failed statement. Python keeps the columns
   * after a commit of another writer. The error of the statement matters more than an error of the
   * drop.
   */
  final void dropAddedColumns() {
    if (addedColumns == null) return;
    Json arguments = addedColumns;
    addedColumns = null;
    try {
      catalog.ask("drop_added_columns", identifier, arguments, null);
    } catch (RuntimeException error) {
      LOG.warn("Columns of a statement that failed stay in {}: {}", name(), error.getMessage());
    }
  }

  private LogicalWriteInfo withLocation(LogicalWriteInfo info) {
    LanceCredentials.refuseBesideCatalog(info.options().asCaseSensitiveMap());
    LanceSource.refuseInternal(info.options());
    Map<String, String> options = new HashMap<>(info.options().asCaseSensitiveMap());
    options.putAll(opened.options("write"));
    CaseInsensitiveStringMap located = new CaseInsensitiveStringMap(options);
    return (LogicalWriteInfo) SparkRelease.copy((Product) info, "options", located);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return new LanceRowLevel(this, info);
  }

  @Override
  public boolean canDeleteWhere(Predicate[] predicates) {
    return predicates.length == 0
        || (predicates.length == 1 && predicates[0] instanceof AlwaysTrue);
  }

  /** Deletes all rows. A {@link RowLevelCommand} deletes some rows. */
  @Override
  public void deleteWhere(Predicate[] predicates) {
    truncate(Map.of());
  }

  @Override
  public boolean truncateTable() {
    truncate(Map.of());
    return true;
  }

  /** Deletes all rows of the table or branch, and returns the number of rows. */
  Json truncate(Map<String, String> options) {
    refuseTravelled("delete");
    return catalog.run(
        "truncate", identifier, new Json().with("pin", pin()).with("options", options));
  }

  /**
   * Refuses a statement that changes rows of an older version, and options that the statement does
   * not support: lance_spark/options/statements.py.
   */
  void checkStatement(String statement, CaseInsensitiveStringMap options) {
    if (!options.isEmpty()) {
      Json arguments =
          new Json()
              .with("statement", statement)
              .with("given", options.asCaseSensitiveMap())
              .with("branch", branch());
      catalog.run("check_options", identifier, arguments);
    }
    refuseTravelled(statement.toLowerCase(Locale.ROOT));
  }

  private void refuseTravelled(String operation) {
    if (!isTravelled()) return;
    throw Errors.thrown(
        refusal(operation, "The rows of an older version stay. Name the table itself."));
  }

  /** Returns the error of a statement without support. */
  AnalysisException refusal(String operation, String why) {
    String what = operation + " of " + name() + ", version " + version();
    return Errors.unsupported(operation, what + ". Nothing was changed. " + why);
  }

  @Override
  public void createIndex(
      String index,
      NamedReference[] columns,
      Map<NamedReference, Map<String, String>> optionsOfColumns,
      Map<String, String> options)
      throws IndexAlreadyExistsException {
    List<String> names = new ArrayList<>();
    Map<String, String> parameters = new HashMap<>(options);
    for (NamedReference column : columns) {
      names.add(String.join(".", column.fieldNames()));
      parameters.putAll(optionsOfColumns.get(column));
    }
    Json arguments =
        new Json().with("index", index).with("columns", names).with("parameters", parameters);
    try {
      catalog.ask("create_index", identifier, arguments, null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("IndexExistsError")) {
        throw new IndexAlreadyExistsException(index, name(), Option.apply(null));
      }
      throw Errors.thrown(Errors.ofCommand("create_index", failure));
    }
  }

  @Override
  public void dropIndex(String index) throws NoSuchIndexException {
    try {
      catalog.ask("drop_index", identifier, Map.of("index", index), null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("IndexNotFoundError")) {
        throw new NoSuchIndexException(index, name(), Option.apply(null));
      }
      throw Errors.thrown(Errors.ofCommand("drop_index", failure));
    }
  }

  @Override
  public boolean indexExists(String name) {
    return Arrays.stream(listIndexes()).anyMatch(index -> index.indexName().equals(name));
  }

  @Override
  public TableIndex[] listIndexes() {
    return catalog.run("list_indexes", identifier, Map.of()).objects("indexes").stream()
        .map(LanceTable::index)
        .toArray(TableIndex[]::new);
  }

  private static TableIndex index(Json index) {
    NamedReference[] columns =
        index.texts("columns").stream().map(Expressions::column).toArray(NamedReference[]::new);
    return new TableIndex(
        index.text("name"), index.text("type"), columns, new HashMap<>(), new Properties());
  }

  @Override
  public boolean equals(Object other) {
    return this == other;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }
}
