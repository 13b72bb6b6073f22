package lancespark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;

/**
 * The declaration of a table, for SHOW CREATE TABLE: blobs are BINARY, with the properties of
 * CREATE TABLE.
 */
final class LanceDeclaredTable extends LanceTable {
  private LanceDeclaredTable(AbstractLanceCatalog catalog, Identifier identifier, Json opened) {
    super(catalog, identifier, opened);
  }

  static LanceTable of(LanceTable table) {
    Json opened =
        table.catalog.run("load_table", table.identifier, Map.of("blob_handling", "bytes"));
    return new LanceDeclaredTable(table.catalog, table.identifier, opened);
  }

  @Override
  public Map<String, String> properties() {
    return propertiesBy("declared_properties");
  }
}
