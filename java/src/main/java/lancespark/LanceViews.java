package lancespark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.UnresolvedIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.plans.logical.CreateMaterializedViewAsSelect;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.command.ExplainCommand;
import scala.Option;

/**
 * CREATE MATERIALIZED VIEW in a catalog of this package, as a call of a procedure. Spark parses the
 * statement, and refuses to run it outside of its pipelines. Pipelines take the node before the
 * analyzer.
 */
final class LanceViews {
  private static final String AUTO_REFRESH = "auto_refresh";

  private LanceViews() {}

  /** Rewrites a statement or its EXPLAIN. Returns every other plan itself. */
  static LogicalPlan replaced(SparkSession session, LogicalPlan plan) {
    if (plan instanceof ExplainCommand explain) {
      LogicalPlan call = created(session, explain.logicalPlan(), false);
      return call == null ? plan : SparkRelease.copy(explain, "logicalPlan", call);
    }
    LogicalPlan call = created(session, plan, false);
    return call == null ? plan : call;
  }

  /**
   * Returns the call that creates a view, or null for other plans and other catalogs.
   *
   * @param fills whether a refresh follows
   */
  static LogicalPlan created(SparkSession session, LogicalPlan plan, boolean fills) {
    if (!(plan instanceof CreateMaterializedViewAsSelect view)) return null;
    if (!(view.name() instanceof UnresolvedIdentifier name)) return null;
    var location = LanceUnresolved.location(session, Scala.list(name.nameParts()));
    if (location == null) return null;
    AnalysisException refusal = refusal(location.quotedName(), view);
    if (refusal != null) throw Errors.thrown(refusal);
    List<Expression> arguments = new ArrayList<>();
    Expression query = AbstractLanceParser.text(view.originalText());
    arguments.add(new NamedArgumentExpression("query", query));
    arguments.add(argument("if_not_exists", view.ifNotExists()));
    arguments.add(argument("with_data", fills));
    String refreshed = properties(view).get(AUTO_REFRESH);
    if (refreshed != null) arguments.add(argument(AUTO_REFRESH, Boolean.parseBoolean(refreshed)));
    return AbstractLanceParser.call(location, "create_materialized_view", arguments);
  }

  private static Expression argument(String name, boolean value) {
    return new NamedArgumentExpression(name, Literal$.MODULE$.apply((Object) value));
  }

  private static Map<String, String> properties(CreateMaterializedViewAsSelect statement) {
    // A class of its own for each kind of options.
    @SuppressWarnings("unchecked") // the parser makes texts
    var properties =
        (scala.collection.Map<String, String>)
            SparkRelease.call(statement.tableSpec(), "properties");
    return Scala.map(properties);
  }

  private static AnalysisException refusal(String view, CreateMaterializedViewAsSelect statement) {
    String clause = null;
    if (!statement.columns().isEmpty()) clause = "a list of columns";
    if (!statement.partitioning().isEmpty()) clause = "PARTITIONED BY or CLUSTER BY";
    Object spec = statement.tableSpec();
    for (Map.Entry<String, String> property : properties(statement).entrySet()) {
      boolean isFlag = property.getValue().matches("(?i)true|false");
      if (!isFlag || !property.getKey().equals(AUTO_REFRESH)) {
        clause = "TBLPROPERTIES except '" + AUTO_REFRESH + "' = 'true' or 'false'";
      }
    }
    if (((Option<?>) SparkRelease.call(spec, "comment")).isDefined()) clause = "COMMENT";
    if (((Option<?>) SparkRelease.call(spec, "location")).isDefined()) clause = "LOCATION";
    Object format = Scala.orNull((Option<?>) SparkRelease.call(spec, "provider"));
    if (format != null && !LanceSource.NAME.equalsIgnoreCase((String) format)) {
      clause = "USING " + format;
    }
    if (clause == null) return null;
    return Errors.unsupported(
        "create",
        "CREATE MATERIALIZED VIEW takes no "
            + clause
            + ". View: "
            + view
            + ". Nothing was made. Leave the clause out, and name the columns in the SELECT.");
  }
}
