package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;

/** A table as CREATE TABLE declares it, of which SHOW CREATE TABLE writes the statement: blobs are BINARY, and properties are what was given. */
final class LanceDeclaredTable extends LanceTable {
  private LanceDeclaredTable(AbstractLanceCatalog catalog, Identifier identifier, Map opened) {
    super(catalog, identifier, opened);
  }

  static LanceTable of(LanceTable table) {
    Map arguments = new HashMap();
    arguments.put("blob_handling", "bytes");
    return new LanceDeclaredTable(table.catalog, table.identifier, table.catalog.run("load_table", table.identifier, arguments));
  }

  public Map properties() {
    Map arguments = new HashMap();
    arguments.put("pin", pin());
    return (Map) catalog.run("declared_properties", identifier, arguments).get("properties");
  }
}
