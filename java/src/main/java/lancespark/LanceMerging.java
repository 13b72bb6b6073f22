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
import scala.Product;
import scala.runtime.AbstractPartialFunction;

/**
 * Has Spark merge subplans over one table, such as scalar subqueries, into one that answers them all. Spark has tried it before this rule
 * met the whole query, and did not see that two scans are of one table: scans of Python data sources have no equality.
 */
final class LanceMerging {
  /** Spark's rule, by its names in the releases. */
  private static final String[] RULES = {
    "org.apache.spark.sql.execution.planmerging.MergeSubplans", "org.apache.spark.sql.catalyst.optimizer.MergeScalarSubqueries"
  };

  private LanceMerging() {}

  static LogicalPlan merged(LogicalPlan plan, SQLConf conf) throws Exception {
    Rule rule = rule(conf);
    if (rule == null) return plan;
    Comparable comparable = new Comparable();
    LogicalPlan compared = (LogicalPlan) plan.transformDownWithSubqueries(comparable);
    if (comparable.tables.size() == comparable.scans) return plan;
    LogicalPlan merged = (LogicalPlan) rule.apply(compared);
    if (merged.equals(compared)) return plan;
    return (LogicalPlan) RewriteDistinctAggregates.apply(merged).transformDownWithSubqueries(new Restored());
  }

  private static Rule rule(SQLConf conf) throws Exception {
    String excluded = conf.optimizerExcludedRules().isDefined() ? (String) conf.optimizerExcludedRules().get() : "";
    for (int i = 0; i < RULES.length; i++) {
      try {
        Class object = Class.forName(RULES[i] + "$", true, LogicalPlan.class.getClassLoader());
        return excluded.contains(RULES[i]) ? null : (Rule) object.getField("MODULE$").get(null);
      } catch (ClassNotFoundException error) {
        continue;
      }
    }
    return null;
  }

  /** Replaces the scans of Lance tables that are not planned yet by scans that are equal where they are of one table. */
  private static final class Comparable extends AbstractPartialFunction {
    final Set tables = new HashSet();
    int scans;

    public boolean isDefinedAt(Object node) {
      return LancePushdown.isLance((LogicalPlan) node);
    }

    public Object apply(Object node) {
      DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) node;
      Table table = relation.relation().table();
      scans++;
      tables.add(table);
      return withScan(relation, new ComparableScan(relation.scan(), table));
    }
  }

  /** Takes the scans of Python back. */
  private static final class Restored extends AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      return node instanceof DataSourceV2ScanRelation && ((DataSourceV2ScanRelation) node).scan() instanceof ComparableScan;
    }

    public Object apply(Object node) {
      DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) node;
      return withScan(relation, ((ComparableScan) relation.scan()).python);
    }
  }

  private static Object withScan(DataSourceV2ScanRelation relation, Scan scan) {
    try {
      return Reflection.copy((Product) relation, "scan", scan);
    } catch (Exception error) {
      throw new LancePushdown.RewriteFailure(error);
    }
  }

  /** A scan while Spark merges; it never leaves this class. The relation around it holds the version and the options. */
  private static final class ComparableScan implements Scan {
    private final Scan python;
    private final Table table;

    ComparableScan(Scan python, Table table) {
      this.python = python;
      this.table = table;
    }

    public StructType readSchema() {
      return python.readSchema();
    }

    public boolean equals(Object other) {
      return other instanceof ComparableScan && ((ComparableScan) other).table.equals(table);
    }

    public int hashCode() {
      return table.hashCode();
    }
  }
}
