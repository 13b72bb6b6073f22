package lance;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Spark's own Python data source, under the name by which Spark finds a format in any thread. A Python data source it looks up in the
 * session that is active in the thread, and a new thread has none.
 */
public final class DefaultSource extends PythonDataSourceV2 {
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    lancespark.LanceExtensions.checkOptions(options.asCaseSensitiveMap());
    return super.inferSchema(options);
  }

  public Table getTable(StructType schema, Transform[] partitions, Map properties) {
    lancespark.LanceExtensions.checkOptions(properties);
    return new lancespark.LancePathTable(this, schema);
  }
}
