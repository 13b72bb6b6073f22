package lancespark;

import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Product;

/**
 * Turns the option mergeSchema of a DataFrame write into INSERT WITH SCHEMA EVOLUTION, before Spark
 * compares the columns. Refuses schema evolution in releases that change the types of existing
 * columns.
 */
final class LanceEvolution extends Rule<LogicalPlan> {
  private final SparkSession session;

  LanceEvolution(SparkSession session) {
    this.session = session;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    if (!evolves(plan)) return plan;
    if (!SparkRelease.EVOLVES_TABLES) {
      throw Errors.thrown(
          Errors.unsupported(
              "schema evolution",
              "Schema evolution of a table of the catalog needs Spark 4.2 or later. Nothing was"
                  + " changed. Add the columns first with ALTER TABLE .. ADD COLUMNS, and write"
                  + " without schema evolution."));
    }
    String branch = plan instanceof V2WriteCommand ? option((Product) plan, "branch") : null;
    if (branch != null && !SparkRelease.HANDS_OVER_OPTIONS) {
      throw Errors.thrown(LanceUnresolved.branchRefusal("the table", branch));
    }
    try {
      return plan instanceof V2WriteCommand
          ? SparkRelease.copy(plan, "withSchemaEvolution", true)
          : plan;
    } catch (RuntimeException error) {
      return plan;
    }
  }

  private boolean evolves(LogicalPlan plan) {
    try {
      if (plan instanceof MergeIntoTable merge) {
        LogicalPlan target = merge.targetTable();
        return Boolean.TRUE.equals(SparkRelease.call(plan, "withSchemaEvolution"))
            && isOurs(target instanceof SubqueryAlias alias ? alias.child() : target);
      }
      return plan instanceof V2WriteCommand write
          && mergesSchema((Product) plan)
          && isOurs(write.table());
    } catch (Exception error) {
      return false;
    }
  }

  private static boolean mergesSchema(Product write) {
    String value = option(write, "mergeSchema");
    return value != null && "true".equalsIgnoreCase(value.trim());
  }

  /** Returns the value of an option of a DataFrame write, or null. */
  private static String option(Product write, String name) {
    var options = (scala.collection.Map<?, ?>) SparkRelease.call(write, "writeOptions");
    for (Map.Entry<?, ?> option : Scala.map(options).entrySet()) {
      if (name.equalsIgnoreCase((String) option.getKey())) return (String) option.getValue();
    }
    return null;
  }

  private boolean isOurs(Object table) {
    if (table instanceof DataSourceV2Relation relation) {
      return RowLevelCommand.tableOf(relation.table()) != null;
    }
    return table instanceof UnresolvedRelation relation
        && LanceUnresolved.location(session, relation) != null;
  }
}
