package lancespark;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The change feed of a table of the catalog, from Spark 4.2 on: lance_spark/changes. The feed
 * applies all options itself, so Spark processes the changes no further.
 */
final class LanceChangelog implements Changelog {
  /** Options of a read for the columns and their values. */
  static final Set<String> STATE_OPTIONS =
      Set.of("branch", "columns", "filter", "with_row_id", "blob_handling");

  /** Options that Spark parses into the context. */
  private static final Set<String> CONTEXT_OPTIONS =
      Set.of(
          "startingversion",
          "endingversion",
          "startingtimestamp",
          "endingtimestamp",
          "startingboundinclusive",
          "endingboundinclusive",
          "deduplicationmode",
          "computeupdates");

  private final String name;
  private final GatewaySource source;
  private final StructType schema;

  /** Options of the feed: lance_spark/changes/options.py. */
  private final Map<String, String> options;

  private LanceChangelog(
      String name, GatewaySource source, StructType schema, Map<String, String> options) {
    this.name = name;
    this.source = source;
    this.schema = schema;
    this.options = options;
  }

  /**
   * Returns the feed by its interface. Otherwise Spark 4.1 could not load the catalog: its check of
   * the class would load the interface.
   */
  static Changelog of(
      AbstractLanceCatalog catalog,
      Identifier identifier,
      ChangelogContext context,
      CaseInsensitiveStringMap query)
      throws NoSuchTableException {
    Json arguments = new Json();
    if (query.containsKey("branch")) arguments.put("branch", query.get("branch"));
    if (!(catalog.load(identifier, arguments) instanceof LanceTable table)) {
      // Spark makes its own error of this exception.
      throw new UnsupportedOperationException(identifier + " has no change feed");
    }
    Map<String, String> options = withoutContext(query);
    options.putAll(table.readOptions());
    options.remove("version");
    options.put("change_feed", "true");
    options.put("deduplicationmode", context.deduplicationMode().value());
    options.put("computeupdates", String.valueOf(context.computeUpdates()));
    addRange(context.range(), options);
    GatewaySource source = GatewaySource.at(null);
    StructType schema = source.inferSchema(new CaseInsensitiveStringMap(options));
    return new LanceChangelog(table.name(), source, schema, options);
  }

  /** Returns the options of a query, except the branch and the options of the context. */
  private static Map<String, String> withoutContext(CaseInsensitiveStringMap query) {
    LanceCredentials.refuseBesideCatalog(query.asCaseSensitiveMap());
    LanceSource.refuseInternal(query);
    Map<String, String> options = new HashMap<>();
    query.forEach(
        (key, value) -> {
          String option = key.toLowerCase(Locale.ROOT);
          if (!CONTEXT_OPTIONS.contains(option) && !option.equals("branch")) {
            options.put(option, value);
          }
        });
    return options;
  }

  private static void addRange(ChangelogRange range, Map<String, String> options) {
    if (range instanceof ChangelogRange.VersionRange versions) {
      options.put("startingversion", versions.startingVersion());
      versions.endingVersion().ifPresent(version -> options.put("endingversion", version));
    } else if (range instanceof ChangelogRange.TimestampRange times) {
      options.put("startingtimestamp", instant(times.startingTimestamp()));
      times.endingTimestamp().ifPresent(time -> options.put("endingtimestamp", instant(time)));
    } else {
      return;
    }
    options.put("startingboundinclusive", String.valueOf(range.startingBoundInclusive()));
    options.put("endingboundinclusive", String.valueOf(range.endingBoundInclusive()));
  }

  private static String instant(long microseconds) {
    return Instant.EPOCH.plus(microseconds, ChronoUnit.MICROS).toString();
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Column[] columns() {
    boolean byDefault = CatalogV2Util.structTypeToV2Columns$default$2();
    return CatalogV2Util.structTypeToV2Columns(schema, byDefault);
  }

  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  @Override
  public boolean containsIntermediateChanges() {
    return false;
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  /** Adds the options that Spark passes to a scan only, such as the limits of micro-batches. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap query) {
    Map<String, String> all = withoutContext(query);
    all.putAll(options);
    return () -> new UnplannedScan(source, schema, new CaseInsensitiveStringMap(all), () -> all);
  }
}
