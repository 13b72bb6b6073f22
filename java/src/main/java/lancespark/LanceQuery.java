package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import scala.Product;
import scala.runtime.AbstractPartialFunction;

/** The query of a statement, which can be asked for at any version of the table that the statement changes. */
final class LanceQuery {
  private final LogicalPlan rows;
  private final LanceTable table;

  LanceQuery(LogicalPlan rows, LanceTable table) {
    this.table = table;
    // What Spark has cached is of one version, whichever the query is asked for at.
    this.rows = (LogicalPlan) rows.transformDownWithSubqueries(new Uncached(table));
  }

  /** Returns how many scans of the table there are, those in subqueries among them. */
  int reads() {
    return reads(rows, table);
  }

  private static int reads(LogicalPlan plan, LanceTable table) {
    return scans(plan, table).size();
  }

  /** Returns the names of the columns of the table that the query reads. */
  List columns() {
    List names = new ArrayList();
    for (Object scan : scans(rows, table)) {
      for (Object column : Reflection.list(((LogicalPlan) scan).output())) names.add(((Attribute) column).name());
    }
    return names;
  }

  private static List scans(LogicalPlan plan, LanceTable table) {
    List scans = new ArrayList();
    plan.transformDownWithSubqueries(new Scans(table, scans));
    return scans;
  }

  /** Returns the query at a version of the table. Other tables of a catalog are as they were when the statement was planned. */
  LogicalPlan at(LanceTable now) {
    return (LogicalPlan) rows.transformDownWithSubqueries(new Fresh(table, now));
  }

  /** The table of a catalog that is read; null where another is. */
  private static LanceTable read(Object node) {
    if (node instanceof DataSourceV2ScanRelation) return RowLevelCommand.tableOf(((DataSourceV2ScanRelation) node).relation().table());
    return node instanceof DataSourceV2Relation ? RowLevelCommand.tableOf(((DataSourceV2Relation) node).table()) : null;
  }

  /** Whether the latest version of a table is read. */
  private static boolean isLatest(LanceTable read, LanceTable table) {
    return read != null && !read.travelled() && read.id().equals(table.id());
  }

  private static final class Scans extends AbstractPartialFunction {
    private final LanceTable table;
    private final List scans;

    Scans(LanceTable table, List scans) {
      this.table = table;
      this.scans = scans;
    }

    public boolean isDefinedAt(Object node) {
      return isLatest(read(node), table);
    }

    public Object apply(Object node) {
      scans.add(node);
      return node;
    }
  }

  /** Replaces rows of the table that Spark has cached by the query that they are of. */
  private static final class Uncached extends AbstractPartialFunction {
    private final LanceTable table;

    Uncached(LanceTable table) {
      this.table = table;
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof InMemoryRelation && reads(query((InMemoryRelation) node), table) > 0;
    }

    public Object apply(Object node) {
      LogicalPlan query = query((InMemoryRelation) node);
      List given = Reflection.list(query.output());
      List asked = Reflection.list(((InMemoryRelation) node).output());
      List columns = new ArrayList();
      for (int i = 0; i < asked.size(); i++) {
        Attribute a = (Attribute) asked.get(i);
        columns.add(new Alias((Expression) given.get(i), a.name(), a.exprId(), a.qualifier(), new scala.Some(a.metadata()), Reflection.seq(new ArrayList())));
      }
      return new Project(Reflection.seq(columns), query);
    }

    private static LogicalPlan query(InMemoryRelation cached) {
      Product builder = (Product) cached.cacheBuilder();
      for (int i = 0; i < builder.productArity(); i++) {
        if (builder.productElement(i) instanceof LogicalPlan) return (LogicalPlan) builder.productElement(i);
      }
      throw new IllegalStateException("this release of Spark does not say which query it has cached");
    }
  }

  private static final class Fresh extends AbstractPartialFunction {
    private final LanceTable before;
    private final LanceTable now;

    Fresh(LanceTable before, LanceTable now) {
      this.before = before;
      this.now = now;
    }

    public boolean isDefinedAt(Object node) {
      return read(node) != null || LancePushdown.isLance((LogicalPlan) node);
    }

    public Object apply(Object node) {
      Map changes = new HashMap();
      try {
        DataSourceV2Relation relation = node instanceof DataSourceV2Relation ? (DataSourceV2Relation) node : null;
        if (relation == null) {
          relation = ((DataSourceV2ScanRelation) node).relation();
          changes.put("output", ((DataSourceV2ScanRelation) node).output());
        }
        LanceTable read = read(relation);
        if (read != null) {
          changes.put("table", isLatest(read, before) ? now : read);
          // A table whose name Spark knows it takes at its latest version, or as it is cached, when the query runs.
          changes.put("catalog", scala.None$.MODULE$);
          changes.put("identifier", scala.None$.MODULE$);
        }
        return Reflection.copy((Product) relation, changes);
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }
  }
}
