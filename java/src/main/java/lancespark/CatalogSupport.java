package lancespark;

import java.util.ArrayList;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.ResolvedNamespace;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.connector.catalog.Table;
import scala.Product;

/** What the planner rule asks about tables of the catalog, and about statements on them. */
final class CatalogSupport {
  private CatalogSupport() {}

  /** Returns what a statement on a table of the catalog becomes; null for any other plan. */
  static LogicalPlan statement(LogicalPlan plan) throws Exception {
    if (plan instanceof WithCTE) {
      // What Spark has found to be common to subqueries stands beside the statement.
      LogicalPlan statement = statement(((WithCTE) plan).plan());
      return statement instanceof RowLevelCommand ? ((RowLevelCommand) statement).beside(((WithCTE) plan).cteDefs()) : null;
    }
    if (plan instanceof CountedWrite) return ((CountedWrite) plan).statement();
    if (plan instanceof ShowCreateTable) return shown((ShowCreateTable) plan);
    if (plan instanceof WriteDelta) return RowLevelCommand.of((WriteDelta) plan);
    if (plan instanceof OverwriteByExpression) return RowLevelCommand.of((OverwriteByExpression) plan);
    if (plan instanceof DeleteFromTable) return AddRowCounts.emptied(plan, new ArrayList());
    // Statistics are in the table.
    if (plan instanceof AnalyzeTables) return isOurs(((AnalyzeTables) plan).child()) ? LancePushdown.localRelation(plan.output(), new ArrayList()) : null;
    if (!(plan instanceof AnalyzeTable)) return null;
    LogicalPlan child = ((AnalyzeTable) plan).child();
    boolean ours = child instanceof ResolvedTable && ((ResolvedTable) child).table() instanceof LanceTable;
    return ours ? new RefreshTable(child) : null;
  }

  private static boolean isOurs(LogicalPlan namespace) {
    return namespace instanceof ResolvedNamespace && ((ResolvedNamespace) namespace).catalog() instanceof AbstractLanceCatalog;
  }

  /** Returns SHOW CREATE TABLE of what a statement declares; null where it is that, or of another table. */
  private static LogicalPlan shown(ShowCreateTable plan) throws Exception {
    if (!(plan.child() instanceof ResolvedTable)) return null;
    ResolvedTable resolved = (ResolvedTable) plan.child();
    if (!(resolved.table() instanceof LanceTable) || resolved.table() instanceof LanceDeclaredTable) return null;
    LanceTable table = LanceDeclaredTable.of((LanceTable) resolved.table());
    return (LogicalPlan) Reflection.copy((Product) plan, "child", Reflection.copy((Product) resolved, "table", table));
  }

  /** Returns the options with which a table of the catalog is read; null for any other table. */
  static Map readOptions(Table table) {
    LanceTable ours = RowLevelCommand.tableOf(table);
    return ours == null ? null : ours.readOptions();
  }

  /** Returns the version of a table of the catalog. */
  static String pin(Table table) {
    return RowLevelCommand.tableOf(table).pin();
  }
}
