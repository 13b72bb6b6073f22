package lancespark;

import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.unsafe.Platform;
import scala.Product;

/**
 * Makes the option mergeSchema of a DataFrame write an INSERT WITH SCHEMA EVOLUTION, before Spark compares the columns. Refuses schema evolution
 * in releases that change the types of existing columns.
 */
final class LanceEvolution extends Rule {
  private final SparkSession session;

  LanceEvolution(SparkSession session) {
    this.session = session;
  }

  public TreeNode apply(TreeNode plan) {
    if (!evolves(plan)) return plan;
    if (!SparkRelease.EVOLVES_TABLES) Platform.throwException(refused());
    try {
      return plan instanceof V2WriteCommand ? (TreeNode) Reflection.copy((Product) plan, "withSchemaEvolution", Boolean.TRUE) : plan;
    } catch (Exception error) {
      return plan;
    }
  }

  private boolean evolves(TreeNode plan) {
    try {
      if (plan instanceof MergeIntoTable) {
        LogicalPlan target = ((MergeIntoTable) plan).targetTable();
        return Boolean.TRUE.equals(Reflection.call(plan, "withSchemaEvolution")) && isOurs(target instanceof SubqueryAlias ? ((SubqueryAlias) target).child() : target);
      }
      if (!(plan instanceof V2WriteCommand)) return false;
      return merges(Reflection.map((scala.collection.Map) Reflection.call(plan, "writeOptions"))) && isOurs(((V2WriteCommand) plan).table());
    } catch (Exception error) {
      return false;
    }
  }

  private static AnalysisException refused() {
    String text = "lance_spark.errors.UnsupportedOperationError: Schema evolution of a table of the catalog needs Spark 4.2 or later. Nothing was changed."
        + " Add the columns first with ALTER TABLE .. ADD COLUMNS, and write without schema evolution.";
    return PythonGateway.error("schema evolution", new PythonGateway.Failure("UnsupportedOperationError", text));
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
    if (table instanceof DataSourceV2Relation) return RowLevelCommand.tableOf(((DataSourceV2Relation) table).table()) != null;
    return table instanceof UnresolvedRelation && LanceUnresolved.identifier(session, (UnresolvedRelation) table) != null;
  }
}
