package lancespark;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table about a table, such as its history: lance_spark/sql/catalog/metadata_tables.py. */
final class LanceMetadataTable extends PythonTable {
  /**
   * Prefix of a name used only by statements of this package. `t.tags` is also the name of a table
   * `tags` in a folder `t`, and no table has a name that begins with a dot.
   */
  static final String PREFIX = ".";

  private final String qualifiedName;
  private final Map<String, String> options;

  LanceMetadataTable(String qualifiedName, Json opened) {
    super(GatewaySource.at(null), LanceSource.NAME, LanceTable.schemaOf(opened));
    this.qualifiedName = qualifiedName;
    this.options = opened.options("read");
  }

  @Override
  public String name() {
    return qualifiedName;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap queryOptions) {
    Map<String, String> all = LanceSource.ofVersion(queryOptions.asCaseSensitiveMap(), options);
    return new MetadataScan(all, schema());
  }
}
