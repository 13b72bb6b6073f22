package lancespark;

import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.optimizer.RewriteDistinctAggregates;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
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
    if (comparable.keys.size() == comparable.scans) return plan;
    LogicalPlan merged = (LogicalPlan) rule.apply(compared);
    return merged.equals(compared) ? plan : RewriteDistinctAggregates.apply(merged);
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

  /** Replaces the scans of Lance tables that are not planned yet by scans that are equal where they are of one table and version. */
  private static final class Comparable extends AbstractPartialFunction {
    final Set keys = new HashSet();
    int scans;

    public boolean isDefinedAt(Object node) {
      return LancePushdown.isLance((LogicalPlan) node);
    }

    public Object apply(Object node) {
      DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) node;
      try {
        String key = LanceSource.key(relation.relation());
        if (key == null) return node;
        scans++;
        keys.add(key);
        return Reflection.copy((Product) relation, "scan", new Unplanned(relation.scan(), key));
      } catch (Exception error) {
        throw new LancePushdown.RewriteFailure(error);
      }
    }
  }

  /** A scan that this rule is about to replace. */
  static final class Unplanned implements Scan {
    private final Scan python;
    private final String key;

    Unplanned(Scan python, String key) {
      this.python = python;
      this.key = key;
    }

    public StructType readSchema() {
      return python.readSchema();
    }

    public boolean equals(Object other) {
      return other instanceof Unplanned && ((Unplanned) other).key.equals(key);
    }

    public int hashCode() {
      return key.hashCode();
    }
  }
}
