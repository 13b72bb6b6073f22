package lancespark;

import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A scan of all columns, in place of which the planner rule puts a {@link LanceScan}. Spark asks
 * for the columns whose values a join may select while the query runs.
 */
final class UnplannedScan extends PythonScan implements SupportsRuntimeV2Filtering {
  private final GatewaySource source;
  private final StructType columns;
  private final CaseInsensitiveStringMap options;
  private final Supplier<Map<String, String>> streamOptions;
  private NamedReference[] keys;

  UnplannedScan(
      GatewaySource source,
      StructType columns,
      CaseInsensitiveStringMap options,
      Supplier<Map<String, String>> streamOptions) {
    super(source, LanceSource.NAME, columns, options, new Filter[0]);
    this.source = source;
    this.columns = columns;
    this.options = options;
    this.streamOptions = streamOptions;
  }

  /** Returns the columns with the same comparison in Lance and Spark: lance_spark/sql/reads.py. */
  @Override
  public synchronized NamedReference[] filterAttributes() {
    if (keys == null) {
      Json arguments =
          new Json()
              .with("options", options.asCaseSensitiveMap())
              .with("schema", columns.json())
              .with("pin", source.pin());
      keys =
          LanceSource.ask("key_columns", arguments).texts("columns").stream()
              .map(name -> new FieldReference(Scala.seqOf(name)))
              .toArray(NamedReference[]::new);
    }
    return keys;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    return source
        .scan(columns, new CaseInsensitiveStringMap(streamOptions.get()))
        .toMicroBatchStream(checkpointLocation);
  }

  /** Ignores the values. The join drops the other rows. */
  @Override
  public void filter(Predicate[] predicates) {}
}
