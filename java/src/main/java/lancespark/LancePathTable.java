package lancespark;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A table by its path or in Spark's own catalog. Extends Spark's table of a Python data source by
 * dynamic overwrites.
 */
public final class LancePathTable extends PythonTable {
  private final GatewaySource source;

  public LancePathTable(GatewaySource source, StructType schema) {
    super(source, LanceSource.NAME, schema);
    this.source = source;
  }

  /** Returns the version from the time of `load`, or null with a schema of the user. */
  String pin() {
    return source.pin();
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> all = new HashSet<>(super.capabilities());
    all.add(TableCapability.OVERWRITE_DYNAMIC);
    return all;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    LanceExtensions.checkOptions(options.asCaseSensitiveMap());
    GatewaySource pinned = GatewaySource.at(pin());
    return () -> new UnplannedScan(pinned, schema(), options, () -> streamOptions(options));
  }

  /**
   * Returns the options of a stream, with the location that `load` has resolved. The process of the
   * stream may have another working directory.
   */
  private Map<String, String> streamOptions(CaseInsensitiveStringMap options) {
    Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
    if (pin() != null) {
      all.keySet().removeIf("path"::equalsIgnoreCase);
      all.put("path", Json.parse(pin()).text("uri"));
    }
    return all;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    LanceExtensions.checkOptions(info.options().asCaseSensitiveMap());
    return new LanceOverwrite((PythonWriteBuilder) super.newWriteBuilder(info));
  }
}
