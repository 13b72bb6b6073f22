package lancespark;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table about a table: lance_spark/sql/metadata_tables.py. */
final class LanceMetadataTable extends PythonTable {
  private final String shown;
  private final Map options;

  LanceMetadataTable(String shown, Map opened) {
    super(LanceTable.source(), LanceSource.NAME, (StructType) DataType.fromJson((String) opened.get("schema")));
    this.shown = shown;
    this.options = (Map) opened.get("read");
  }

  public String name() {
    return shown;
  }

  public Set capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ);
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Map all = LanceSource.ofVersion(given.asCaseSensitiveMap(), options);
    LanceSource.prove(all);
    return super.newScanBuilder(new CaseInsensitiveStringMap(all));
  }
}
