package lancespark;

import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableContext;
import org.apache.spark.sql.connector.catalog.TimeTravel;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The class of `spark.sql.catalog.lance = lancespark.LanceCatalog`, with the settings `.root` and
 * `.storage.*`. From Spark 4.3 on, a catalog gets the options of a read.
 */
public class LanceCatalog extends AbstractLanceCatalog {
  /** Names the options of `spark.read.option("version", ..).table(..)` to select a version. */
  @Override
  public Set<String> tableStateOptionKeys() {
    return Set.copyOf(LanceSource.STATE_OPTIONS);
  }

  @Override
  public Table loadTable(
      Identifier identifier, TableContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    Json arguments = new Json();
    boolean reads = context.writePrivileges().isEmpty();
    for (String key : LanceSource.STATE_OPTIONS) {
      // A statement that changes rows refuses the other options.
      boolean applies = reads || key.equals("branch");
      if (applies && options.containsKey(key)) arguments.put(key, options.get(key));
    }
    addBlobHandling(context.writePrivileges(), arguments);
    context
        .timeTravel()
        .ifPresent(
            travel -> {
              if (travel instanceof TimeTravel.AsOfVersion version) {
                arguments.put("version", version.version());
              } else {
                arguments.put("microseconds", ((TimeTravel.AsOfTimestamp) travel).micros());
              }
            });
    return load(identifier, arguments);
  }

  /** Names the options of `spark.read.option("columns", ..).changes(..)` to select the columns. */
  @Override
  public Set<String> changelogStateOptionKeys() {
    return LanceChangelog.STATE_OPTIONS;
  }

  @Override
  public Changelog loadChangelog(
      Identifier identifier, ChangelogContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    return LanceChangelog.of(this, identifier, context, options);
  }
}
