package lancespark;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A scan of all columns of a table of the catalog, until the planner rule prunes them. Spark names
 * the row columns of a query only in {@link #pruneColumns}.
 */
final class TableScan implements SupportsPushDownRequiredColumns {
  private final Map<String, String> options;
  private final StructType stored;
  private final Supplier<Map<String, String>> streamOptions;
  private StructType columns;

  TableScan(
      Map<String, String> options, StructType stored, Supplier<Map<String, String>> streamOptions) {
    this.options = options;
    this.stored = stored;
    this.streamOptions = streamOptions;
    this.columns = stored;
  }

  @Override
  public void pruneColumns(StructType required) {
    columns = stored;
    for (StructField column : required.fields()) {
      if (stored.getFieldIndex(column.name()).isEmpty()) columns = columns.add(column);
    }
  }

  @Override
  public Scan build() {
    Map<String, String> all = new HashMap<>(options);
    if (columns.length() > 0) all.put("columns", Json.write(columns.fieldNames()));
    return new UnplannedScan(
        GatewaySource.at(null), columns, new CaseInsensitiveStringMap(all), streamOptions);
  }
}
