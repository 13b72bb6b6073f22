package lancespark;

import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The class of `spark.sql.catalog.lance = lancespark.LanceCatalog`, with the settings `.root` and
 * `.storage.*`, in Spark 4.2.
 */
public class LanceCatalog extends AbstractLanceCatalog {
  @Override
  public Changelog loadChangelog(
      Identifier identifier, ChangelogContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    return LanceChangelog.of(this, identifier, context, options);
  }
}
