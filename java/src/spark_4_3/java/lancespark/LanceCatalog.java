package lancespark;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableContext;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TimeTravel;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** `spark.sql.catalog.lance = lancespark.LanceCatalog`, and `.root` and `.storage.*` of it, from Spark 4.3 on, which hands over the options of a read. */
public final class LanceCatalog extends AbstractLanceCatalog {
  /** `spark.read.option("version", ..).table(..)`: the options of `load` that say which version, and as what it is read. */
  public Set tableStateOptionKeys() {
    return new HashSet(LanceSource.STATE_OPTIONS);
  }

  boolean opensBranches() {
    return true;
  }

  public Table loadTable(Identifier identifier, TableContext context, CaseInsensitiveStringMap options) throws NoSuchTableException {
    Map moment = new HashMap();
    boolean reads = context.writePrivileges().isEmpty();
    for (int i = 0; i < LanceSource.STATE_OPTIONS.size(); i++) {
      String key = (String) LanceSource.STATE_OPTIONS.get(i);
      // A statement that changes rows refuses the others by name.
      if (options.containsKey(key) && (reads || key.equals("branch"))) moment.put(key, options.get(key));
    }
    takeBytes(context.writePrivileges(), moment);
    if (context.timeTravel().isPresent()) {
      Object as = context.timeTravel().get();
      if (as instanceof TimeTravel.AsOfVersion) moment.put("version", ((TimeTravel.AsOfVersion) as).version());
      else moment.put("microseconds", Long.valueOf(((TimeTravel.AsOfTimestamp) as).micros()));
    }
    return load(identifier, moment);
  }

  /** CREATE TABLE .. LIKE. Of a table of another catalog Spark gives the columns. */
  public Table createTableLike(Identifier identifier, TableInfo info, Table like) throws TableAlreadyExistsException, NoSuchNamespaceException {
    return like instanceof LanceTable ? createLike(identifier, (LanceTable) like, info.properties()) : createTable(identifier, info);
  }
}
