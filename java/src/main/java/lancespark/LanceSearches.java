package lancespark;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.StringType;

/**
 * Search functions with the name of a table of a catalog in the place of a path. Spark runs the
 * functions in Python processes without catalogs: lance_spark/read/ranking/functions.py.
 */
final class LanceSearches {
  private static final Set<String> FUNCTIONS =
      Set.of("lance_vector_search", "lance_text_search", "lance_hybrid_search");

  private final SparkSession session;

  private LanceSearches(SparkSession session) {
    this.session = session;
  }

  /** Replaces names of tables in calls of search functions, also in subqueries. */
  static LogicalPlan located(SparkSession session, LogicalPlan plan) {
    return new LanceSearches(session).located(plan);
  }

  private LogicalPlan located(LogicalPlan plan) {
    var pattern = TreePattern$.MODULE$.UNRESOLVED_TABLE_VALUED_FUNCTION();
    if (!plan.containsPattern(pattern)) return plan;
    LogicalPlan own =
        plan instanceof UnresolvedTableValuedFunction call && isSearch(call)
            ? withPath(call)
            : Trees.mapChildren(plan, this::located);
    return own.mapExpressions(Scala.function(this::inSubquery));
  }

  private Expression inSubquery(Expression e) {
    if (e instanceof SubqueryExpression subquery) {
      LogicalPlan located = located(subquery.plan());
      return located == subquery.plan() ? e : subquery.withNewPlan(located);
    }
    return Trees.mapChildren(e, this::inSubquery);
  }

  private static boolean isSearch(UnresolvedTableValuedFunction call) {
    return FUNCTIONS.contains(call.name().last().toLowerCase(Locale.ROOT));
  }

  private LogicalPlan withPath(UnresolvedTableValuedFunction call) {
    List<Expression> arguments = Scala.list(call.functionArgs());
    List<Expression> located = new ArrayList<>();
    for (int i = 0; i < arguments.size(); i++) {
      Expression argument = arguments.get(i);
      if (argument instanceof NamedArgumentExpression named) {
        boolean isPath = named.key().equalsIgnoreCase("path");
        Expression value = isPath ? path(named.value()) : named.value();
        located.add(value == named.value() ? named : new NamedArgumentExpression("path", value));
      } else {
        located.add(i == 0 ? path(argument) : argument);
      }
    }
    return located.equals(arguments)
        ? call
        : SparkRelease.copy(call, "functionArgs", Scala.seq(located));
  }

  /** Returns the path of a table by its name. Every other value stays. */
  private Expression path(Expression value) {
    if (!(value instanceof Literal literal && literal.dataType() instanceof StringType))
      return value;
    if (literal.value() == null) return value;
    String name = literal.value().toString();
    boolean isPath = name.contains("/") && !name.contains("`");
    if (name.isEmpty() || isPath) return value;
    List<String> parts = LanceUnresolved.partsOf(name);
    LanceUnresolved.Location table = LanceUnresolved.location(session, parts);
    if (table == null) return value;
    Json answer = table.catalog().run("locate_table", table.identifier(), Map.of());
    String path = answer.text("path");
    // A relative path is no name of a table, unless the name has the catalog.
    boolean isQualified = parts.get(0).equals(table.catalog().name()) && parts.size() > 1;
    if (path == null && !isQualified) return value;
    if (path == null || answer.isTrue("has_options")) {
      throw Errors.thrown(
          Errors.option(
              "Option 'path' = '"
                  + name
                  + (path == null
                      ? "' is not valid. Accepted: the name of a table of the catalog, or a path."
                      : "' is a table with options of an object store, which a search function"
                          + " cannot take. Accepted: a table in a folder, or a view of the table:"
                          + " CREATE TEMPORARY VIEW ... USING lance.")));
    }
    return AbstractLanceParser.text(path);
  }
}
