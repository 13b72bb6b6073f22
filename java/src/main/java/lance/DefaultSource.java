package lance;

import java.util.Map;
import lancespark.GatewaySource;
import lancespark.LanceExtensions;
import lancespark.LancePathTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The class of `format("lance")`, which Spark finds by its name. The class serves any thread: Spark
 * looks up a Python data source in the active session of the thread, and a new thread has none.
 */
public class DefaultSource extends GatewaySource {
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
