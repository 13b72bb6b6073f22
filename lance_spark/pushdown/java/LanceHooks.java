package lancespark;

import java.util.Map;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.Table;

/** What the SQL catalog adds to the rule. Its Java may not compile where that of the rule does; then there is none. */
public abstract class LanceHooks {
  private static volatile LanceHooks installed;

  public void install() {
    installed = this;
  }

  /** Returns what a statement on a table of the catalog becomes; null for any other plan. */
  static LogicalPlan statement(LogicalPlan plan) throws Exception {
    return installed == null ? null : installed.planned(plan);
  }

  /** Returns the options with which a table of the catalog is read; null for any other table. */
  static Map readOptions(Table table) {
    return installed == null ? null : installed.options(table);
  }

  /** Returns the version of a table of the catalog. */
  static String pin(Table table) {
    return installed.pinOf(table);
  }

  abstract LogicalPlan planned(LogicalPlan plan) throws Exception;

  abstract Map options(Table table);

  abstract String pinOf(Table table);
}
