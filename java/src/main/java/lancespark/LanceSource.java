package lancespark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.WeakHashMap;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.QueryPlanningTracker$;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/** The Python side, seen from the rule: which table a relation means, and a new scan of it. */
final class LanceSource {
  static final String NAME = "lance";
  /** How the names of options begin that no user sets. */
  private static final String INTERNAL = "lancespark.";
  static final String SCAN_OPTION = "lancespark.scan";
  static final String WRITE_OPTION = "lancespark.write";
  /** Names the options of a catalog table, some of which are for reading it, and some for writing. */
  static final String TABLE_OPTION = "lancespark.table";
  /** Shows the Python side that this JVM set the other internal options: lance_spark/options.py. */
  private static final String BY_OPTION = "lancespark.by";
  static final String SCAN_COLUMN = "__lance_scan";
  static final String SCAN_METADATA = "lance.scan";
  static final String TABLE_METADATA = "lance.table";
  private static final String SNAPSHOT = " snapshot";
  private static final String PIN_MARK = "lancespark.pin=";
  static final ObjectMapper JSON = new ObjectMapper();

  /**
   * An empty plan of a write: as a read option it marks a view that SQL made, and a writer that meets it does what it always does. The
   * leading space tells it from a plan that turned out empty.
   */
  static final String VIEW_MARK = " {\"path\":null,\"exclusive\":false,\"input_columns\":null,\"snapshots\":[]}";

  /** Per query (Spark has one tracker for it and its subqueries): the instance that pinned the version of each followed table. */
  private static final WeakHashMap PINNED = new WeakHashMap();

  /** Options as the user gave them, the location included. */
  final Map options;
  /** JSON of the table and version that are read; null where this scan has to pin one. */
  String pin;
  /** Metadata of the row addresses of a table that is followed, which Spark knows as of an older version; else null. */
  String snapshot;
  /** Where pin and snapshot are kept for the other scans of the query; null where the version was pinned before. */
  private final Map pins;
  private final String pinKey;

  private LanceSource(Map options, String pin, Map pins, String pinKey) {
    this.options = options;
    this.pin = pin;
    this.pins = pins;
    this.pinKey = pinKey;
  }

  /** Returns the source of a relation, or null where it is not known (a schema given by the user). */
  static LanceSource of(DataSourceV2Relation relation) throws Exception {
    Map options = new HashMap(relation.options().asCaseSensitiveMap());
    Map ofCatalog = CatalogSupport.readOptions(relation.table());
    if (ofCatalog != null) options = ofVersion(options, ofCatalog);
    if (searches(options)) return null;
    if (ofCatalog != null) return new LanceSource(options, CatalogSupport.pin(relation.table()), null, null);
    if (relation.identifier().isDefined()) {
      refuseInternal(relation.options());
      Map stored = catalogOptions((Identifier) relation.identifier().get());
      if (stored == null || searches(stored)) return null;
      stored.put(TABLE_OPTION, String.join(",", stored.keySet()));
      prove(stored);
      stored.putAll(options);
      return followed(stored, relation);
    }
    CaseInsensitiveStringMap given = relation.options();
    refuseInternal(given);
    if (given.containsKey(WRITE_OPTION) && !given.containsKey("version") && !given.containsKey("timestamp")) return followed(options, relation);
    Object created = Reflection.field(Reflection.field(relation.table(), "ds"), "dataSourceInPython");
    if (created == null || !given.containsKey("path")) return null;
    return new LanceSource(options, pinOf(created), null, null);
  }

  /** Options that decide which version a catalog opens, and which columns of which types it has. */
  static final List STATE_OPTIONS = java.util.Arrays.asList(new String[] {"version", "branch", "timestamp", "columns", "with_row_id",
      "with_row_address", "with_row_versions", "blob_handling"});

  /** Options of a query, with those that name what is read in place of those that asked for it. */
  static Map ofVersion(Map given, Map pinned) {
    LanceCredentials.refuseBesideCatalog(given);
    refuseInternal(new CaseInsensitiveStringMap(given));
    Map options = new HashMap();
    Iterator entries = given.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String key = ((String) entry.getKey()).toLowerCase(Locale.ROOT);
      boolean ours = STATE_OPTIONS.contains(key);
      if (ours && !SparkRelease.HANDS_OVER_OPTIONS) {
        throw new IllegalArgumentException("the option `" + key + "` of a table of a catalog needs Spark 4.3: say `versionAsOf` or `timestampAsOf`,"
            + " or VERSION AS OF or TIMESTAMP AS OF in SQL, or select the columns, or read the table by its path");
      }
      if (!ours && !key.equals("versionasof") && !key.equals("timestampasof")) options.put(key, entry.getValue());
    }
    options.putAll(pinned);
    return options;
  }

  /** Adds the proof that this JVM set internal options: a digest of a folder that Spark makes under a random name. */
  static void prove(Map options) {
    options.put(BY_OPTION, proof());
  }

  private static String proof() {
    try {
      byte[] folder = org.apache.spark.SparkFiles.getRootDirectory().getBytes(StandardCharsets.UTF_8);
      return java.util.HexFormat.of().formatHex(java.security.MessageDigest.getInstance("SHA-256").digest(folder));
    } catch (java.security.NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Refuses options that only the rule and the catalog may set. */
  static void refuseInternal(CaseInsensitiveStringMap given) {
    Iterator keys = given.keySet().iterator();
    while (keys.hasNext()) {
      String key = ((String) keys.next()).toLowerCase(Locale.ROOT);
      boolean mark = (key.equals(WRITE_OPTION) && VIEW_MARK.equals(given.get(key))) || (key.equals(BY_OPTION) && proof().equals(given.get(key)));
      if (key.startsWith(INTERNAL) && !mark) Platform.throwException(internal(key));
    }
  }

  private static AnalysisException internal(String key) {
    Map parameters = new HashMap();
    parameters.put("type", NAME);
    parameters.put("action", "take options of");
    parameters.put("msg", "lance_spark.errors.OptionError: option '" + key + "' is internal - nothing was done - leave it out: the planner rule sets it");
    return new AnalysisException("PYTHON_DATA_SOURCE_ERROR", scala.collection.immutable.Map$.MODULE$.from(scala.jdk.javaapi.CollectionConverters.asScala(parameters)));
  }

  static boolean isOurs(Table table) {
    return (table instanceof PythonTable && table.name().equals(NAME)) || CatalogSupport.readOptions(table) != null;
  }

  /** Whether rows are read by rank: no filter, limit or aggregate may come before that. */
  private static boolean searches(Map options) {
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    return given.containsKey("nearest") || given.containsKey("full_text_query");
  }

  /** What a data source that Python made says about itself: text in the pickled object, which is read as text and never unpickled. */
  private static String pinOf(Object created) throws Exception {
    String pickled = new String((byte[]) Reflection.call(created, "dataSource"), StandardCharsets.ISO_8859_1);
    int mark = pickled.lastIndexOf(PIN_MARK);
    if (mark < 0) throw new IllegalStateException("the data source does not say which version it has pinned");
    return JSON.readTree(pickled.substring(mark + PIN_MARK.length())).toString();
  }

  private static LanceSource followed(Map options, DataSourceV2Relation relation) throws Exception {
    options.remove(WRITE_OPTION);
    Map pins = pinsOfThisQuery();
    String key = JSON.writeValueAsString(new TreeMap(options));
    LanceSource source = new LanceSource(options, (String) pins.get(key), pins, key);
    if (hasRowColumns(Reflection.list(relation.output())) && !pins.containsKey(key)) source.pinWithSnapshot();
    source.snapshot = (String) pins.get(key + SNAPSHOT);
    return source;
  }

  static boolean hasRowColumns(List attributes) {
    Iterator each = attributes.iterator();
    while (each.hasNext()) {
      if (LanceReads.isRowColumn(((Attribute) each.next()).name())) return true;
    }
    return false;
  }

  /** Opens the table as `load` would: only that says which version the row addresses are of. */
  private void pinWithSnapshot() throws Exception {
    PythonDataSourceV2 provider = new PythonDataSourceV2();
    provider.setShortName(NAME);
    StructField[] fields = provider.inferSchema(new CaseInsensitiveStringMap(options)).fields();
    for (int i = 0; i < fields.length; i++) {
      if (LanceReads.isRowColumn(fields[i].name()) && fields[i].metadata().contains(TABLE_METADATA)) {
        pins.put(pinKey + SNAPSHOT, fields[i].metadata().getString(TABLE_METADATA));
      }
    }
    keep(provider);
  }

  private void keep(PythonDataSourceV2 provider) throws Exception {
    pin = pinOf(Reflection.field(provider, "dataSourceInPython"));
    pins.put(pinKey, pin);
  }

  private static Map pinsOfThisQuery() {
    scala.Option tracker = QueryPlanningTracker$.MODULE$.get();
    if (tracker.isEmpty()) return new HashMap();
    synchronized (PINNED) {
      Map pins = (Map) PINNED.get(tracker.get());
      if (pins == null) {
        pins = new HashMap();
        PINNED.put(tracker.get(), pins);
      }
      return pins;
    }
  }

  /** Location and options of a table in Spark's session catalog, or null where it has none there. */
  static Map catalogOptions(Identifier identifier) throws Exception {
    if (identifier.namespace().length != 1) return null;
    SessionCatalog catalog = sessionCatalog();
    TableIdentifier name = new TableIdentifier(identifier.name(), new scala.Some(identifier.namespace()[0]));
    if (!catalog.tableExists(name)) return null;
    CatalogStorageFormat storage = ((CatalogTable) catalog.getTableMetadata(name)).storage();
    Map options = new HashMap();
    Iterator entries = Reflection.map(storage.properties()).entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String key = (String) entry.getKey();
      if (!key.equals("serialization.format")) options.put(key.toLowerCase(Locale.ROOT), entry.getValue());
    }
    if (storage.locationUri().isDefined()) options.put("path", storage.locationUri().get().toString());
    return options.containsKey("path") ? options : null;
  }

  static SessionCatalog sessionCatalog() throws Exception {
    Object session = Class.forName("org.apache.spark.sql.classic.SparkSession").getMethod("active", new Class[0]).invoke(null, new Object[0]);
    return (SessionCatalog) Reflection.call(Reflection.call(session, "sessionState"), "catalog");
  }

  String path() {
    return (String) new CaseInsensitiveStringMap(options).get("path");
  }

  boolean limited() {
    return new CaseInsensitiveStringMap(options).containsKey("limit");
  }

  /**
   * Asks Python for a scan. `spec` is the JSON of lance_spark/read/spec.py without its pin. Returns null where aggregates are asked for
   * above a filter that Lance does not apply exactly.
   */
  LanceScan scan(Map spec) throws Exception {
    Map whole = new LinkedHashMap(spec);
    whole.put("pin", pin);
    Map given = new HashMap(options);
    given.put(SCAN_OPTION, JSON.writeValueAsString(whole));
    prove(given);
    CaseInsensitiveStringMap map = new CaseInsensitiveStringMap(given);
    PythonDataSourceV2 provider = new PythonDataSourceV2();
    provider.setShortName(NAME);
    StructType answered = provider.inferSchema(map);
    StructField last = answered.fields()[answered.length() - 1];
    if (!last.name().equals(SCAN_COLUMN)) throw new IllegalStateException("the data source did not answer the rule");
    StructType schema = new StructType();
    for (int i = 0; i < answered.length() - 1; i++) schema = schema.add(answered.fields()[i]);
    Map known = (Map) JSON.readValue(last.metadata().getString(SCAN_METADATA), Map.class);
    if (pins != null && pin == null) keep(provider);
    if (Boolean.FALSE.equals(known.get("serves"))) return null;
    if (known.get("read") != null) provider.setReadInfo(readInfo(Base64.getDecoder().decode((String) known.get("read"))));
    Table table = provider.getTable(schema, null, map);
    Scan python = ((PythonTable) table).newScanBuilder(map).build();
    whole.put("pin", pin);
    Map same = new LinkedHashMap(whole);
    same.put("predicate", canonical(whole.get("predicate")));
    String key = JSON.writeValueAsString(new TreeMap(options)) + JSON.writeValueAsString(same);
    return new LanceScan(python, key, whole, options, path(), String.valueOf(known.get("description")),
        number(known.get("rows")), number(known.get("bytes")), Boolean.TRUE.equals(known.get("limited")), Boolean.TRUE.equals(known.get("splits")), (List) known.get("dense"),
        (List) known.get("unscaled"), (Map) known.get("elements"), (List) known.get("answer"));
  }

  /** What Spark's own planning process would answer: lance_spark/read/planned.py. */
  private static PythonDataSourceReadInfo readInfo(byte[] answer) {
    ByteBuffer left = ByteBuffer.wrap(answer);
    byte[] function = next(left);
    List partitions = new ArrayList();
    for (int n = left.getInt(); n > 0; n--) partitions.add(next(left));
    return new PythonDataSourceReadInfo(function, Reflection.seq(partitions));
  }

  private static byte[] next(ByteBuffer left) {
    byte[] bytes = new byte[left.getInt()];
    left.get(bytes);
    return bytes;
  }

  /** A predicate with the arguments of AND, OR and IN in one order: two scans that differ in nothing else are equal. */
  private static Object canonical(Object predicate) throws Exception {
    if (!(predicate instanceof Map) || !(((Map) predicate).get("args") instanceof List)) return predicate;
    Map result = new LinkedHashMap((Map) predicate);
    String op = String.valueOf(result.get("op"));
    List args = (List) result.get("args");
    int fixed = op.equals("and") || op.equals("or") ? 0 : op.equals("in") ? 1 : args.size();
    TreeMap sorted = new TreeMap();
    List ordered = new ArrayList();
    for (int i = 0; i < args.size(); i++) {
      Object arg = canonical(args.get(i));
      if (i < fixed) ordered.add(arg);
      else sorted.put(JSON.writeValueAsString(arg), arg);
    }
    ordered.addAll(sorted.values());
    result.put("args", ordered);
    return result;
  }

  /** The same scan with one entry of its spec changed. */
  static LanceScan again(LanceScan scan, String key, Object value) throws Exception {
    Map spec = new LinkedHashMap(scan.spec);
    spec.put(key, value);
    return new LanceSource(scan.options, (String) scan.spec.get("pin"), null, null).scan(spec);
  }

  static Metadata withSnapshot(Metadata metadata, String snapshot) {
    return new MetadataBuilder().withMetadata(metadata).putString(TABLE_METADATA, snapshot).build();
  }

  private static long number(Object value) {
    return value instanceof Number ? ((Number) value).longValue() : -1L;
  }
}
