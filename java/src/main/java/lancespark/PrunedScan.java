package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A scan without the planner rule: whole columns, those of each row among them. */
final class PrunedScan implements SupportsPushDownRequiredColumns {
  private final Map options;
  private final StructType schema;
  private StructType required;

  PrunedScan(Map options, StructType schema) {
    this.options = options;
    this.schema = schema;
    this.required = schema;
  }

  public void pruneColumns(StructType wanted) {
    StructType whole = new StructType();
    StructField[] fields = wanted.fields();
    for (int i = 0; i < fields.length; i++) {
      boolean known = schema.getFieldIndex(fields[i].name()).isDefined();
      whole = whole.add(known ? schema.fields()[schema.fieldIndex(fields[i].name())] : fields[i]);
    }
    required = whole;
  }

  public Scan build() {
    try {
      Map given = new HashMap(options);
      String[] names = required.fieldNames();
      if (names.length > 0) given.put("columns", LanceSource.JSON.writeValueAsString(names));
      return new UnplannedScan(LanceTable.source(), required, new CaseInsensitiveStringMap(given));
    } catch (java.io.IOException error) {
      throw new IllegalStateException(error);
    }
  }
}
