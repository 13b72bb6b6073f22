package lance;

import java.util.Map;
import lancespark.LanceExtensions;
import lancespark.LancePathTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Spark's own Python data source under a class name, for any thread. Spark looks up a Python data
 * source in the active session of the thread, and a new thread has none.
 */
public final class DefaultSource extends PythonDataSourceV2 {
  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    LanceExtensions.checkOptions(options.asCaseSensitiveMap());
    return super.inferSchema(options);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitions, Map<String, String> properties) {
    LanceExtensions.checkOptions(properties);
    return new LancePathTable(this, schema);
  }
}
