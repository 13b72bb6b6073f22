package lancespark;

import java.util.ArrayList;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.ResolvedNamespace;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.connector.catalog.Table;
import scala.Product;

/** Statements on tables of the catalog, for the rule. */
public final class LanceSql extends LanceHooks {
  LogicalPlan planned(LogicalPlan plan) throws Exception {
    if (plan instanceof WithCTE) {
      // What Spark has found to be common to subqueries stands beside the statement.
      LogicalPlan statement = planned(((WithCTE) plan).plan());
      return statement instanceof LanceStatement ? ((LanceStatement) statement).beside(((WithCTE) plan).cteDefs()) : null;
    }
    if (plan instanceof LanceCounted) return ((LanceCounted) plan).statement();
    if (plan instanceof ShowCreateTable) return shown((ShowCreateTable) plan);
    if (plan instanceof WriteDelta) return LanceStatement.of((WriteDelta) plan);
    if (plan instanceof OverwriteByExpression) return LanceStatement.of((OverwriteByExpression) plan);
    if (plan instanceof DeleteFromTable) return LanceCounts.emptied(plan, new ArrayList());
    // Statistics are in the table.
    if (plan instanceof AnalyzeTables) return isOurs(((AnalyzeTables) plan).child()) ? LancePushdown.localRelation(plan.output(), new ArrayList()) : null;
    if (!(plan instanceof AnalyzeTable)) return null;
    LogicalPlan child = ((AnalyzeTable) plan).child();
    boolean ours = child instanceof ResolvedTable && ((ResolvedTable) child).table() instanceof LanceTable;
    return ours ? new RefreshTable(child) : null;
  }

  private static boolean isOurs(LogicalPlan namespace) {
    return namespace instanceof ResolvedNamespace && ((ResolvedNamespace) namespace).catalog() instanceof LanceFolder;
  }

  /** Returns SHOW CREATE TABLE of what a statement declares; null where it is that, or of another table. */
  private static LogicalPlan shown(ShowCreateTable plan) throws Exception {
    if (!(plan.child() instanceof ResolvedTable)) return null;
    ResolvedTable resolved = (ResolvedTable) plan.child();
    if (!(resolved.table() instanceof LanceTable) || resolved.table() instanceof LanceDeclaredTable) return null;
    LanceTable table = LanceDeclaredTable.of((LanceTable) resolved.table());
    return (LogicalPlan) Reflection.copy((Product) plan, "child", Reflection.copy((Product) resolved, "table", table));
  }

  Map options(Table table) {
    LanceTable ours = LanceStatement.tableOf(table);
    return ours == null ? null : ours.readOptions();
  }

  String pinOf(Table table) {
    return LanceStatement.tableOf(table).pin();
  }
}
