package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
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
import org.apache.spark.unsafe.Platform;
import scala.Product;

/** One version of a table of the catalog: Spark's own table of a Python data source, with what SQL does beyond reading and appending. */
public class LanceTable extends PythonTable implements SupportsMetadataColumns, SupportsRowLevelOperations, SupportsDeleteV2, SupportsIndex {
  final AbstractLanceCatalog catalog;
  final Identifier identifier;
  /** Answer of Python to the command that opened the table: lance_spark/sql/tables.py. */
  final Map opened;

  LanceTable(AbstractLanceCatalog catalog, Identifier identifier, Map opened) {
    super(source(), LanceSource.NAME, (StructType) DataType.fromJson((String) opened.get("schema")));
    this.catalog = catalog;
    this.identifier = identifier;
    this.opened = opened;
  }

  static PythonDataSourceV2 source() {
    PythonDataSourceV2 provider = new PythonDataSourceV2();
    provider.setShortName(LanceSource.NAME);
    return provider;
  }

  public String name() {
    return catalog.name() + "." + AbstractLanceCatalog.quoted(identifier);
  }

  public String id() {
    return (String) opened.get("id");
  }

  public String version() {
    return String.valueOf(opened.get("version"));
  }

  /** Whether a statement asked for an older version. */
  boolean travelled() {
    return Boolean.TRUE.equals(opened.get("travelled"));
  }

  /** The branch of this version; null for the table's own. */
  String branch() {
    return (String) ((Map) opened.get("write")).get("branch");
  }

  /** Options with which the Python data source reads this version. */
  Map readOptions() {
    return (Map) opened.get("read");
  }

  /** Whether a column holds blobs. */
  boolean isBlob(String column) {
    Iterator names = ((List) opened.get("blobs")).iterator();
    while (names.hasNext()) {
      if (column.equalsIgnoreCase((String) names.next())) return true;
    }
    return false;
  }

  String pin() {
    return (String) opened.get("pin");
  }

  /** Also what DESCRIBE says; looked up when it is asked for. */
  public Map properties() {
    if (opened.get("pin") == null) return new HashMap();
    Map arguments = new HashMap();
    arguments.put("pin", opened.get("pin"));
    return (Map) catalog.run("properties", identifier, arguments).get("properties");
  }

  public Set capabilities() {
    Set all = new HashSet(super.capabilities());
    all.add(TableCapability.OVERWRITE_BY_FILTER);
    all.add(TableCapability.OVERWRITE_DYNAMIC);
    return all;
  }

  public MetadataColumn[] metadataColumns() {
    List fields = (List) opened.get("metadata_columns");
    MetadataColumn[] columns = new MetadataColumn[fields.size()];
    for (int i = 0; i < columns.length; i++) columns[i] = new RowColumn((Map) fields.get(i));
    return columns;
  }

  /** Without the planner rule, or where that fails, Spark reads the columns that it needs, and no more. */
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    return new PrunedScan(LanceSource.ofVersion(given.asCaseSensitiveMap(), readOptions()), schema());
  }

  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return writeBuilder(info, false);
  }

  final WriteBuilder writeBuilder(LogicalWriteInfo info, boolean replaces) {
    return new LanceWriteBuilder((PythonWriteBuilder) super.newWriteBuilder(located(info)), replaces);
  }

  /** The same write with the location of the table. */
  private LogicalWriteInfo located(LogicalWriteInfo info) {
    LanceCredentials.refuseBesideCatalog(info.options().asCaseSensitiveMap());
    LanceSource.refuseInternal(info.options());
    Map options = new HashMap(info.options().asCaseSensitiveMap());
    options.putAll((Map) opened.get("write"));
    try {
      return (LogicalWriteInfo) Reflection.copy((Product) info, "options", new CaseInsensitiveStringMap(options));
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return new LanceRowLevel(this, info);
  }

  public boolean canDeleteWhere(Predicate[] predicates) {
    return predicates.length == 0 || (predicates.length == 1 && predicates[0] instanceof AlwaysTrue);
  }

  /** Deletes all rows; other deletions are statements of {@link RowLevelCommand}. */
  public void deleteWhere(Predicate[] predicates) {
    truncated();
  }

  /** Deletes all rows of the table or branch, and returns the number of rows. */
  Map truncated() {
    refuseTravelled("delete");
    Map arguments = new HashMap();
    arguments.put("pin", pin());
    return catalog.run("truncate", identifier, arguments);
  }

  /** Refuses a statement that changes rows of an older version, or has an option that it does not take: lance_spark/statement_options.py. */
  void checkStatement(String statement, CaseInsensitiveStringMap options) {
    if (!options.isEmpty()) {
      Map arguments = new HashMap();
      arguments.put("statement", statement);
      arguments.put("given", options.asCaseSensitiveMap());
      arguments.put("branch", branch());
      catalog.run("check_options", identifier, arguments);
    }
    refuseTravelled(statement.toLowerCase());
  }

  private void refuseTravelled(String operation) {
    if (travelled()) Platform.throwException(refusal(operation, "the rows of an older version stay; name the table itself"));
  }

  /** The error of a statement that cannot be. */
  AnalysisException refusal(String operation, String why) {
    String text = "lance_spark.errors.UnsupportedOperationError: " + operation + " of " + name() + ", version " + version() + " - nothing was changed - " + why;
    return PythonGateway.error(operation, new PythonGateway.Failure("UnsupportedOperationError", text));
  }

  public boolean truncateTable() {
    deleteWhere(new Predicate[0]);
    return true;
  }

  public void createIndex(String index, NamedReference[] columns, Map optionsOfColumns, Map options) throws IndexAlreadyExistsException {
    List names = new ArrayList();
    Map all = new HashMap(options);
    for (int i = 0; i < columns.length; i++) {
      names.add(String.join(".", columns[i].fieldNames()));
      all.putAll((Map) optionsOfColumns.get(columns[i]));
    }
    Map arguments = new HashMap();
    arguments.put("index", index);
    arguments.put("columns", names);
    arguments.put("parameters", all);
    try {
      catalog.ask("create_index", identifier, arguments, null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("IndexExistsError")) throw new IndexAlreadyExistsException(index, name(), scala.Option.apply(null));
      Platform.throwException(PythonGateway.error("create_index", failure));
    }
  }

  public void dropIndex(String index) throws NoSuchIndexException {
    Map arguments = new HashMap();
    arguments.put("index", index);
    try {
      catalog.ask("drop_index", identifier, arguments, null);
    } catch (PythonGateway.Failure failure) {
      if (failure.kind.equals("IndexNotFoundError")) throw new NoSuchIndexException(index, name(), scala.Option.apply(null));
      Platform.throwException(PythonGateway.error("drop_index", failure));
    }
  }

  public boolean indexExists(String index) {
    TableIndex[] all = listIndexes();
    for (int i = 0; i < all.length; i++) {
      if (all[i].indexName().equals(index)) return true;
    }
    return false;
  }

  public TableIndex[] listIndexes() {
    List described = (List) catalog.run("list_indexes", identifier, new HashMap()).get("indexes");
    TableIndex[] all = new TableIndex[described.size()];
    for (int i = 0; i < all.length; i++) {
      Map one = (Map) described.get(i);
      List names = (List) one.get("columns");
      NamedReference[] columns = new NamedReference[names.size()];
      for (int c = 0; c < columns.length; c++) columns[c] = Expressions.column((String) names.get(c));
      all[i] = new TableIndex((String) one.get("name"), (String) one.get("type"), columns, new HashMap(), new Properties());
    }
    return all;
  }

  public boolean equals(Object other) {
    return this == other;
  }

  public int hashCode() {
    return System.identityHashCode(this);
  }
}
