package lancespark;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.ResolvedNamespace;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;

/** Statements on tables of the catalog, for the planner rule. */
final class CatalogSupport {
  private CatalogSupport() {}

  /** Returns the replacement of a statement on a table of the catalog, or null for other plans. */
  static LogicalPlan statement(LogicalPlan plan) {
    if (plan instanceof WithCTE with) {
      // Spark keeps common subqueries next to the statement.
      return statement(with.plan()) instanceof RowLevelCommand command
          ? command.withQueries(with.cteDefs())
          : null;
    }
    if (plan instanceof CountedWrite write) return write.statement();
    if (plan instanceof ShowCreateTable show) return showDeclaration(show);
    if (plan instanceof WriteDelta delta) return changeOfRows(delta);
    if (!LanceAnalysis.serves(SparkSession.active())) {
      V2WriteCommand merge = AddRowCounts.insertOnlyMerge(plan, true);
      if (merge != null) return RowLevelCommand.inserting(merge);
    }
    if (plan instanceof OverwriteByExpression overwrite) return RowLevelCommand.of(overwrite);
    if (plan instanceof DeleteFromTable delete) return AddRowCounts.truncation(delete, List.of());
    // The table contains its statistics, so ANALYZE has no work.
    if (plan instanceof AnalyzeTables analyze) {
      return isOurs(analyze.child()) ? LancePushdown.localRelation(plan.output(), List.of()) : null;
    }
    if (LanceCommands.isNeedless(plan)) {
      return LancePushdown.localRelation(plan.output(), List.of());
    }
    if (plan instanceof AnalyzeTable analyze) {
      return tableOf(analyze.child()) != null ? new RefreshTable(analyze.child()) : null;
    }
    return null;
  }

  /** Returns a statement without the columns of its result. Its session lacks the extension. */
  private static RowLevelCommand changeOfRows(WriteDelta delta) {
    RowLevelCommand command = RowLevelCommand.of(delta);
    if (command != null) AddRowCounts.refuseNondeterministicMerge(delta);
    return command;
  }

  private static boolean isOurs(LogicalPlan namespace) {
    return namespace instanceof ResolvedNamespace resolved
        && resolved.catalog() instanceof AbstractLanceCatalog
        && !(resolved.catalog() instanceof LanceSessionCatalog);
  }

  private static LanceTable tableOf(LogicalPlan plan) {
    return plan instanceof ResolvedTable resolved && resolved.table() instanceof LanceTable table
        ? table
        : null;
  }

  /** Returns SHOW CREATE TABLE of the declaration. Returns null for a declaration itself. */
  private static LogicalPlan showDeclaration(ShowCreateTable plan) {
    LanceTable table = tableOf(plan.child());
    if (table == null || table instanceof LanceDeclaredTable) return null;
    LogicalPlan declared = SparkRelease.copy(plan.child(), "table", LanceDeclaredTable.of(table));
    return SparkRelease.copy(plan, "child", declared);
  }

  /** Returns the options for reads of a table of the catalog, or null. */
  static Map<String, String> readOptions(Table table) {
    LanceTable ours = RowLevelCommand.tableOf(table);
    return ours == null ? null : ours.readOptions();
  }

  /** Returns the version of a table of the catalog. */
  static String pin(Table table) {
    return RowLevelCommand.tableOf(table).pin();
  }
}
