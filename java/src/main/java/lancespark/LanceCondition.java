package lancespark;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.QueryExecution;

/** The condition of a statement. Called by Python: lance_spark/sql/procedures/conditions.py. */
public final class LanceCondition {
  /**
   * Returns the condition of the rows of a table as JSON, or null for a query with more than a
   * condition on columns. A condition without columns is `true` or `false`.
   */
  public String predicate(Dataset<Row> rows) {
    QueryExecution query = rows.queryExecution();
    LogicalPlan plan =
        LancePushdown.without(
            () ->
                query.sparkSession().sessionState().optimizer().execute(query.analyzed().clone()));
    if (plan instanceof LocalRelation none && none.data().isEmpty()) return "false";
    Json predicate = LancePushdown.wholePredicate(plan);
    if (predicate != null) return Json.write(predicate);
    boolean isFiltered = plan.exists(Scala.function(node -> node instanceof Filter));
    return LancePushdown.isWholeTable(plan) && !isFiltered ? "true" : null;
  }
}
