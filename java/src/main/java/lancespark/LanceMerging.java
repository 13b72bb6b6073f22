package lancespark;

import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.optimizer.RewriteDistinctAggregates;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * Merges subplans over one table, such as scalar subqueries, by Spark's own rule. Spark applies its
 * rule earlier, but scans of Python data sources have no equality at that point.
 */
final class LanceMerging {
  private LanceMerging() {}

  static LogicalPlan merged(LogicalPlan plan, SQLConf conf) {
    String excludedRules = conf.optimizerExcludedRules().getOrElse(() -> "");
    Rule<LogicalPlan> rule = SparkRelease.mergeSubplans();
    if (rule == null || excludedRules.contains(rule.ruleName())) return plan;
    Set<Table> tables = new HashSet<>();
    int[] scans = {0};
    LogicalPlan comparable =
        plan.transformDownWithSubqueries(
            Trees.rule(
                LancePushdown::isLance,
                node -> {
                  DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) node;
                  Table table = relation.relation().table();
                  scans[0]++;
                  tables.add(table);
                  return withScan(relation, new ComparableScan(relation.scan(), table));
                }));
    if (tables.size() == scans[0]) return plan;
    LogicalPlan mergedPlan = rule.apply(comparable);
    if (mergedPlan.equals(comparable)) return plan;
    return RewriteDistinctAggregates.apply(mergedPlan)
        .transformDownWithSubqueries(
            Trees.rule(
                node -> comparableScan(node) != null,
                node -> withScan((DataSourceV2ScanRelation) node, comparableScan(node).python)));
  }

  private static ComparableScan comparableScan(LogicalPlan plan) {
    return plan instanceof DataSourceV2ScanRelation relation
            && relation.scan() instanceof ComparableScan scan
        ? scan
        : null;
  }

  private static LogicalPlan withScan(DataSourceV2ScanRelation relation, Scan scan) {
    return SparkRelease.copy(relation, "scan", scan);
  }

  /**
   * A scan with equality by table and columns, while Spark merges. The relation around the scan
   * holds the version and the options, and Spark compares its columns by their types alone.
   */
  private static final class ComparableScan implements Scan {
    private final Scan python;
    private final Table table;

    ComparableScan(Scan python, Table table) {
      this.python = python;
      this.table = table;
    }

    @Override
    public StructType readSchema() {
      return python.readSchema();
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof ComparableScan scan
          && scan.table.equals(table)
          && scan.readSchema().equals(readSchema());
    }

    @Override
    public int hashCode() {
      return table.hashCode();
    }
  }
}
