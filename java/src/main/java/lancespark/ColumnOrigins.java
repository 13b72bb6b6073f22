package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;

/** The columns of scans behind the attributes of a query. One walk serves all attributes. */
final class ColumnOrigins {
  /** A column of a scan. */
  private record Origin(LogicalPlan scan, String column) {}

  private final Map<ExprId, Origin> origins;

  private ColumnOrigins(Map<ExprId, Origin> origins) {
    this.origins = origins;
  }

  /** Returns the origins of the attributes of a query's output. Computed attributes have none. */
  static ColumnOrigins of(LogicalPlan query) {
    return new ColumnOrigins(originsOf(query));
  }

  /** Tells whether a value is the present value of a column, in the row of an address. */
  boolean isCopy(Attribute value, String column, Attribute address) {
    Origin source = origins.get(value.exprId());
    Origin row = origins.get(address.exprId());
    return source != null
        && row != null
        && source.scan() == row.scan()
        && source.column().equals(column);
  }

  private static Map<ExprId, Origin> originsOf(LogicalPlan plan) {
    Map<ExprId, Origin> origins = new HashMap<>();
    if (plan instanceof DataSourceV2ScanRelation) {
      for (Attribute column : Scala.list(plan.output())) {
        origins.put(column.exprId(), new Origin(plan, column.name()));
      }
      return origins;
    }
    for (LogicalPlan child : Trees.children(plan)) {
      originsOf(child).forEach(origins::putIfAbsent);
    }
    return plan instanceof Project project ? projected(project, origins) : origins;
  }

  private static Map<ExprId, Origin> projected(Project project, Map<ExprId, Origin> below) {
    Map<ExprId, Origin> origins = new HashMap<>();
    for (NamedExpression projection : Scala.list(project.projectList())) {
      Attribute source = LanceWrites.sourceOf(projection);
      Origin origin = source == null ? null : below.get(source.exprId());
      if (origin != null) origins.put(projection.exprId(), origin);
    }
    return origins;
  }
}
