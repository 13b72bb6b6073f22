package lancespark;

import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A scan without a plan: Python plans when the query runs. The planner rule replaces the scan
 * before.
 */
final class UnplannedScan extends PythonScan {
  private final PythonDataSourceV2 provider;
  private final CaseInsensitiveStringMap options;
  private final StructType required;

  UnplannedScan(
      PythonDataSourceV2 provider, StructType required, CaseInsensitiveStringMap options) {
    super(provider, LanceSource.NAME, required, options, new Filter[0]);
    this.provider = provider;
    this.options = options;
    this.required = required;
  }

  @Override
  public Batch toBatch() {
    StructType schema = required.length() > 0 ? provider.inferSchema(options) : required;
    PythonTable table = new PythonTable(provider, LanceSource.NAME, schema);
    return table.newScanBuilder(options).build().toBatch();
  }
}
