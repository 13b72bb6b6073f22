package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A scan of whole columns, including row columns, in a session without the planner rule. */
final class PrunedScan implements SupportsPushDownRequiredColumns {
  private final Map<String, String> options;
  private final StructType schema;
  private StructType required;

  PrunedScan(Map<String, String> options, StructType schema) {
    this.options = options;
    this.schema = schema;
    this.required = schema;
  }

  @Override
  public void pruneColumns(StructType columns) {
    required = new StructType();
    for (StructField column : columns.fields()) {
      boolean isStored = schema.getFieldIndex(column.name()).isDefined();
      required = required.add(isStored ? schema.apply(column.name()) : column);
    }
  }

  @Override
  public Scan build() {
    Map<String, String> all = new HashMap<>(options);
    String[] names = required.fieldNames();
    if (names.length > 0) all.put("columns", Json.write(names));
    return GatewaySource.at(null).scan(required, new CaseInsensitiveStringMap(all));
  }
}
