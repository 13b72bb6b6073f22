package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import scala.Option;
import scala.Product;

/** The query of a statement, for any version of the statement's table. */
final class LanceQuery {
  private final LogicalPlan rows;
  private final LanceTable table;

  LanceQuery(LogicalPlan rows, LanceTable table) {
    this.table = table;
    // The cache holds a single version, so cached rows of the table become their query again.
    this.rows =
        RuntimeFilter.withoutJoins(rows)
            .transformDownWithSubqueries(
                Trees.rule(
                    node -> node instanceof InMemoryRelation cached && caches(cached, table),
                    node -> uncached((InMemoryRelation) node)));
  }

  private static boolean caches(InMemoryRelation cached, LanceTable table) {
    return !scans(queryOf(cached), table).isEmpty();
  }

  /** Returns the number of scans of the table, including scans in subqueries. */
  int countScans() {
    return scans(rows, table).size();
  }

  /** Returns the names of the table's columns used by the query. */
  List<String> columns() {
    IdentityHashMap<LogicalPlan, List<Attribute>> used = new IdentityHashMap<>();
    rows.transformDownWithSubqueries(
        Trees.rule(
            node -> node instanceof Project,
            node -> {
              Project project = (Project) node;
              List<Expression> all = new ArrayList<>(Scala.list(project.expressions()));
              LogicalPlan at = project.child();
              for (; at instanceof Filter filter; at = filter.child()) all.add(filter.condition());
              used.put(at, LancePushdown.referenced(Scala.list(at.output()), all));
              return node;
            }));
    return scans(rows, table).stream()
        .flatMap(scan -> used.getOrDefault(scan, Scala.list(scan.output())).stream())
        .map(Attribute::name)
        .toList();
  }

  private static List<LogicalPlan> scans(LogicalPlan plan, LanceTable table) {
    List<LogicalPlan> scans = new ArrayList<>();
    plan.transformDownWithSubqueries(
        Trees.rule(
            node -> isLatest(tableOf(node), table),
            node -> {
              scans.add(node);
              return node;
            }));
    return scans;
  }

  /**
   * Returns the query at a version of the table. Other tables of a catalog keep the versions of the
   * statement's plan.
   */
  LogicalPlan at(LanceTable version) {
    return rows.transformDownWithSubqueries(
        Trees.rule(
            node -> tableOf(node) != null || LancePushdown.isLance(node),
            node -> unplanned(node, version)));
  }

  /** Returns the table of a catalog behind a scan, or null for other plans. */
  private static LanceTable tableOf(LogicalPlan node) {
    if (node instanceof DataSourceV2ScanRelation scan) {
      return RowLevelCommand.tableOf(scan.relation().table());
    }
    return node instanceof DataSourceV2Relation relation
        ? RowLevelCommand.tableOf(relation.table())
        : null;
  }

  private static boolean isLatest(LanceTable scanned, LanceTable table) {
    return scanned != null && !scanned.isTravelled() && scanned.id().equals(table.id());
  }

  private static LogicalPlan uncached(InMemoryRelation cached) {
    LogicalPlan query = queryOf(cached);
    List<Attribute> sources = Scala.list(query.output());
    List<Attribute> output = Scala.list(cached.output());
    List<Expression> columns = new ArrayList<>();
    for (int i = 0; i < output.size(); i++) {
      columns.add(Trees.aliasAs(sources.get(i), output.get(i)));
    }
    return new Project(LancePushdown.namedSeq(columns), query);
  }

  private static LogicalPlan queryOf(InMemoryRelation cached) {
    Product builder = (Product) cached.cacheBuilder();
    for (int i = 0; i < builder.productArity(); i++) {
      if (builder.productElement(i) instanceof LogicalPlan query) return query;
    }
    throw new IllegalStateException("this release of Spark does not name the query of a cache");
  }

  /** Returns the relation of a scan, for a new plan. */
  private LogicalPlan unplanned(LogicalPlan node, LanceTable version) {
    Map<String, Object> changes = new HashMap<>();
    DataSourceV2Relation relation;
    if (node instanceof DataSourceV2ScanRelation scan) {
      relation = scan.relation();
      changes.put("output", scan.output());
    } else {
      relation = (DataSourceV2Relation) node;
    }
    LanceTable scanned = tableOf(relation);
    if (scanned != null) {
      changes.put("table", isLatest(scanned, table) ? version : scanned);
      // By its name, Spark would read the latest version of a table, or its cache.
      changes.put("catalog", Option.empty());
      changes.put("identifier", Option.empty());
    }
    return SparkRelease.copy(relation, changes);
  }
}
