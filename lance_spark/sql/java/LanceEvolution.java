package lancespark;

import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Product;

/**
 * Has the option mergeSchema of a DataFrame write to a table of the catalog do what INSERT WITH SCHEMA EVOLUTION does. Spark compares the
 * columns before it asks a table, so this comes before that.
 */
final class LanceEvolution extends Rule {
  private final SparkSession session;

  LanceEvolution(SparkSession session) {
    this.session = session;
  }

  public TreeNode apply(TreeNode plan) {
    if (!(plan instanceof V2WriteCommand)) return plan;
    try {
      Map options = Reflection.map((scala.collection.Map) Reflection.call(plan, "writeOptions"));
      if (!merges(options) || !isOurs(((V2WriteCommand) plan).table())) return plan;
      return (TreeNode) Reflection.copy((Product) plan, "withSchemaEvolution", Boolean.TRUE);
    } catch (Exception error) {
      return plan;
    }
  }

  private static boolean merges(Map options) {
    Iterator entries = options.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      if ("mergeSchema".equalsIgnoreCase((String) entry.getKey())) return "true".equalsIgnoreCase(((String) entry.getValue()).trim());
    }
    return false;
  }

  private boolean isOurs(Object table) throws Exception {
    if (table instanceof DataSourceV2Relation) return LanceStatement.tableOf(((DataSourceV2Relation) table).table()) != null;
    if (!(table instanceof UnresolvedRelation)) return false;
    CatalogManager catalogs = session.sessionState().catalogManager();
    String first = (String) ((UnresolvedRelation) table).multipartIdentifier().head();
    CatalogPlugin catalog = catalogs.isCatalogRegistered(first) ? catalogs.catalog(first) : catalogs.currentCatalog();
    return catalog instanceof LanceFolder;
  }
}
