package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.WeakHashMap;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.QueryPlanningTracker$;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** The table of a relation, and requests of scans of the table to Python. */
final class LanceSource {
  static final String NAME = "lance";

  /** Prefix of internal options. */
  private static final String INTERNAL = "lancespark.";

  static final String WRITE_OPTION = "lancespark.write";

  /** Lists the options of a catalog table. Some are for reads, and some for writes. */
  static final String TABLE_OPTION = "lancespark.table";

  static final String TABLE_METADATA = "lance.table";
  private static final String SNAPSHOT = " snapshot";

  /**
   * An empty plan of a write. As a read option, this name marks a view of SQL; a writer with this
   * option uses its defaults. The leading space distinguishes the mark from an empty plan.
   */
  static final String VIEW_MARK =
      " {\"path\":null,\"exclusive\":false,\"input_columns\":null,\"snapshots\":[]}";

  /** Options of a read for the version, or for the columns and their types. */
  static final List<String> STATE_OPTIONS =
      List.of(
          "version",
          "branch",
          "timestamp",
          "columns",
          "with_row_id",
          "with_row_address",
          "with_row_versions",
          "blob_handling");

  /** Options for a version, and of statements that scan their target. */
  private static final List<String> NOT_OF_SCANS =
      List.of("versionasof", "timestampasof", "txn_app_id", "txn_version");

  /** Options of searches, and of changes: lance_spark/changes/options.py. */
  private static final List<String> PLANNED_BY_PYTHON =
      List.of(
          "nearest",
          "full_text_query",
          "change_feed",
          "startingversion",
          "startingtimestamp",
          "startingboundinclusive",
          "maxversionspertrigger",
          "maxrowspertrigger",
          "maxbytespertrigger",
          "ready_columns");

  /**
   * Latest versions of tables, pinned per query. Spark shares a tracker between a query and its
   * subqueries.
   */
  private static final Map<QueryPlanningTracker, Map<String, String>> PINNED = new WeakHashMap<>();

  /** Options of the user, with the location. */
  private final Map<String, String> options;

  /** JSON of the table and its version; null until this scan pins a version. */
  private String pin;

  /** Current metadata of the row addresses of a followed table; null for other tables. */
  String snapshot;

  /** Pins and snapshots for the other scans of the query; null if the version is fixed. */
  private final Map<String, String> pins;

  private final String pinKey;

  private LanceSource(
      Map<String, String> options, String pin, Map<String, String> pins, String pinKey) {
    this.options = options;
    this.pin = pin;
    this.pins = pins;
    this.pinKey = pinKey;
  }

  /**
   * Returns the source of a relation, or null for a read that Python plans alone and for a relation
   * without a pin: with a schema of the user, or from a time without the jar.
   */
  static LanceSource of(DataSourceV2Relation relation) {
    Map<String, String> options = new HashMap<>(relation.options().asCaseSensitiveMap());
    Map<String, String> ofCatalog = CatalogSupport.readOptions(relation.table());
    if (ofCatalog != null) options = ofVersion(options, ofCatalog);
    if (isPlannedByPython(options)) return null;
    if (ofCatalog != null) {
      return new LanceSource(options, CatalogSupport.pin(relation.table()), null, null);
    }
    CaseInsensitiveStringMap relationOptions = relation.options();
    refuseInternal(relationOptions);
    if (relation.identifier().isDefined()) {
      Map<String, String> stored = catalogOptions(relation.identifier().get());
      if (stored == null || isPlannedByPython(stored)) return null;
      stored.put(TABLE_OPTION, String.join(",", stored.keySet()));
      stored.putAll(options);
      return following(stored, relation);
    }
    boolean isView = relationOptions.containsKey(WRITE_OPTION);
    if (isView
        && !relationOptions.containsKey("version")
        && !relationOptions.containsKey("timestamp")) {
      return following(options, relation);
    }
    String pin = relation.table() instanceof LancePathTable table ? table.pin() : null;
    return pin == null ? null : new LanceSource(options, pin, null, null);
  }

  /** Replaces a query's options for selecting a version by the number of the version. */
  static Map<String, String> ofVersion(
      Map<String, String> queryOptions, Map<String, String> versionOptions) {
    LanceCredentials.refuseBesideCatalog(queryOptions);
    refuseInternal(new CaseInsensitiveStringMap(queryOptions));
    Map<String, String> options = new HashMap<>();
    queryOptions.forEach(
        (name, value) -> {
          String key = name.toLowerCase(Locale.ROOT);
          boolean isState = STATE_OPTIONS.contains(key);
          if (isState && !SparkRelease.HANDS_OVER_OPTIONS) {
            throw new IllegalArgumentException(
                "the option `"
                    + key
                    + "` of a table of a catalog needs Spark 4.3: say `versionAsOf` or"
                    + " `timestampAsOf`, or VERSION AS OF or TIMESTAMP AS OF in SQL, or select the"
                    + " columns, or read the table by its path");
          }
          if (!isState && !NOT_OF_SCANS.contains(key)) options.put(key, value);
        });
    options.putAll(versionOptions);
    return options;
  }

  /** Refuses options of the rule and the catalog from users. */
  static void refuseInternal(CaseInsensitiveStringMap options) {
    for (String name : options.keySet()) {
      String key = name.toLowerCase(Locale.ROOT);
      String value = options.get(key);
      boolean isMark = key.equals(WRITE_OPTION) && VIEW_MARK.equals(value);
      if (key.startsWith(INTERNAL) && !isMark) {
        throw Errors.thrown(
            Errors.option(
                "option '"
                    + key
                    + "' is internal. Nothing was done. Leave it out: the planner rule sets it."));
      }
    }
  }

  static boolean isOurs(Table table) {
    return (table instanceof PythonTable && table.name().equals(NAME))
        || CatalogSupport.readOptions(table) != null;
  }

  /** Tells whether Python plans a read alone: a search, or a read of changes. */
  private static boolean isPlannedByPython(Map<String, String> options) {
    CaseInsensitiveStringMap map = new CaseInsensitiveStringMap(options);
    return PLANNED_BY_PYTHON.stream().anyMatch(map::containsKey);
  }

  private static LanceSource following(Map<String, String> options, DataSourceV2Relation relation) {
    options.remove(WRITE_OPTION);
    Map<String, String> pins = pinsOfThisQuery();
    String key = Json.write(new TreeMap<>(options));
    LanceSource source = new LanceSource(options, pins.get(key), pins, key);
    if (hasRowColumns(Scala.list(relation.output())) && !pins.containsKey(key)) {
      source.pinWithSnapshot();
    }
    source.snapshot = pins.get(key + SNAPSHOT);
    return source;
  }

  static boolean hasRowColumns(List<? extends Attribute> attributes) {
    return attributes.stream().anyMatch(a -> LanceReads.isRowColumn(a.name()));
  }

  /** Opens the table as `load` does, to learn the version of its row addresses. */
  private void pinWithSnapshot() {
    GatewaySource opened = GatewaySource.at(null);
    for (StructField field : opened.inferSchema(new CaseInsensitiveStringMap(options)).fields()) {
      if (LanceReads.isRowColumn(field.name()) && field.metadata().contains(TABLE_METADATA)) {
        pins.put(pinKey + SNAPSHOT, field.metadata().getString(TABLE_METADATA));
      }
    }
    savePin(opened.pin());
  }

  private void savePin(String newPin) {
    pin = newPin;
    pins.put(pinKey, pin);
  }

  private static Map<String, String> pinsOfThisQuery() {
    Option<QueryPlanningTracker> tracker = QueryPlanningTracker$.MODULE$.get();
    if (tracker.isEmpty()) return new HashMap<>();
    synchronized (PINNED) {
      return PINNED.computeIfAbsent(tracker.get(), query -> new HashMap<>());
    }
  }

  /** Location and options of a table in Spark's session catalog, or null without a location. */
  static Map<String, String> catalogOptions(Identifier identifier) {
    if (identifier.namespace().length != 1) return null;
    String database = identifier.namespace()[0];
    CatalogTable table =
        sessionTable(new TableIdentifier(identifier.name(), Option.apply(database)));
    if (table == null) return null;
    CatalogStorageFormat storage = table.storage();
    Map<String, String> options = new HashMap<>();
    Scala.map(storage.properties())
        .forEach(
            (key, value) -> {
              if (!key.equals("serialization.format")) {
                options.put(key.toLowerCase(Locale.ROOT), value);
              }
            });
    if (storage.locationUri().isDefined()) {
      options.put("path", storage.locationUri().get().toString());
    }
    return options.containsKey("path") ? options : null;
  }

  static SessionCatalog sessionCatalog() {
    return SparkSession.active().sessionState().catalog();
  }

  /** Returns a table of Spark's session catalog, or null. */
  static CatalogTable sessionTable(TableIdentifier name) {
    try {
      return sessionCatalog().tableExists(name) ? sessionCatalog().getTableMetadata(name) : null;
    } catch (NoSuchNamespaceException | NoSuchTableException error) {
      throw Errors.thrown(error);
    }
  }

  private String path() {
    return new CaseInsensitiveStringMap(options).get("path");
  }

  /** Tells whether the options limit the rows, so that filters apply after the limit. */
  boolean isLimited() {
    return new CaseInsensitiveStringMap(options).containsKey("limit");
  }

  /**
   * Returns the number of tasks that the cluster runs at once. Spark cuts files for as many. Before
   * its executors have registered, a cluster of fixed size counts by its settings.
   */
  static int slots() {
    SparkContext context = SparkSession.active().sparkContext();
    SparkConf conf = context.conf();
    int executors = conf.getInt("spark.executor.instances", 0);
    int cores = Math.max(context.defaultParallelism(), conf.getInt("spark.cores.max", 0));
    cores = Math.max(cores, executors * conf.getInt("spark.executor.cores", 1));
    return Math.max(1, cores / conf.getInt("spark.task.cpus", 1));
  }

  /** Runs a command for a read in Python, and returns the answer. */
  static Json ask(String command, Json arguments) {
    return ask(command, arguments, null);
  }

  /** Runs a command in Python, with an object of the JVM or null. */
  static Json ask(String command, Json arguments, Object object) {
    try {
      return PythonGateway.call(command, arguments, object);
    } catch (PythonGateway.Failure failure) {
      throw Errors.thrown(Errors.ofCommand(command, failure));
    }
  }

  /**
   * Requests a scan from Python.
   *
   * @param spec the request: lance_spark/read/planning/pushdown_request.py
   * @return null for aggregates above a filter that Lance does not apply exactly
   */
  LanceScan scan(Json spec) {
    Json arguments =
        new Json()
            .with("options", options)
            .with("pin", pin)
            .with("spec", spec)
            .with("slots", slots());
    Json answer = ask("plan_scan", arguments);
    if (pins != null && pin == null) savePin(answer.text("pin"));
    if (!answer.isTrue("serves")) return null;
    Json comparable =
        new Json(spec).with("pin", pin).with("predicate", canonical(spec.get("predicate")));
    String key = Json.write(new TreeMap<>(options)) + Json.write(comparable);
    return new LanceScan(GatewaySource.scan(answer), key, pin, spec, options, path(), answer);
  }

  /** Sorts the arguments of AND, OR and IN, so that equal scans compare as equal. */
  private static Object canonical(Object predicate) {
    if (!(predicate instanceof Map<?, ?> node) || !(node.get("args") instanceof List<?> args)) {
      return predicate;
    }
    int fixed =
        switch (String.valueOf(node.get("op"))) {
          case "and", "or" -> 0;
          case "in" -> 1;
          default -> args.size();
        };
    List<Object> ordered = new ArrayList<>();
    TreeMap<String, Object> sorted = new TreeMap<>();
    for (int i = 0; i < args.size(); i++) {
      Object arg = canonical(args.get(i));
      if (i < fixed) ordered.add(arg);
      else sorted.put(Json.write(arg), arg);
    }
    ordered.addAll(sorted.values());
    return new Json(node).with("args", ordered);
  }

  /** Requests a scan again with a single change of its request. */
  static LanceScan again(LanceScan scan, String key, Object value) {
    LanceSource source = new LanceSource(scan.options, scan.pin, null, null);
    return source.scan(new Json(scan.spec).with(key, value));
  }

  static Metadata withSnapshot(Metadata metadata, String snapshot) {
    return new MetadataBuilder().withMetadata(metadata).putString(TABLE_METADATA, snapshot).build();
  }
}
