package lancespark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.QueryPlanningTracker$;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.command.ExplainCommand;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.unsafe.Platform;
import scala.Product;
import scala.runtime.AbstractPartialFunction;

/** Looks at statements on tables of the catalog before Spark resolves them. */
final class LanceUnresolved extends Rule {
  private static final List ROW_COLUMNS = Arrays.asList(new String[] {"_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"});

  /** How Spark quotes an empty name. */
  private static final String NO_NAME = "``";
  /** Set while a statement is analyzed within the analysis that Spark began. */
  private static final ThreadLocal ANALYZING = new ThreadLocal();

  private final SparkSession session;

  LanceUnresolved(SparkSession session) {
    this.session = session;
  }

  public TreeNode apply(TreeNode plan) {
    AnalysisException refused;
    try {
      refused = refusal((LogicalPlan) plan);
    } catch (Exception error) {
      refused = null;
    }
    if (refused != null) Platform.throwException(refused);
    LogicalPlan settled = (LogicalPlan) ((LogicalPlan) plan).resolveOperators(new Moments(session));
    String name = ANALYZING.get() == null ? assignedTable(settled) : null;
    return name == null ? settled : analyzed(settled, name);
  }

  /**
   * Returns an UPDATE or a MERGE analyzed. Where a value does not fit its column, Spark's error of these statements has an empty name of the
   * table, and no rule sees the values before that error.
   */
  private LogicalPlan analyzed(LogicalPlan statement, String name) {
    ANALYZING.set(Boolean.TRUE);
    try {
      scala.Option tracker = QueryPlanningTracker$.MODULE$.get();
      return session.sessionState().analyzer().executeAndCheck(statement, tracker.isDefined() ? (QueryPlanningTracker) tracker.get() : new QueryPlanningTracker(scala.Option.empty()));
    } catch (Exception error) {
      Platform.throwException(error instanceof AnalysisException ? withTable((AnalysisException) error, name) : error);
      return null;
    } finally {
      ANALYZING.remove();
    }
  }

  /** Returns an error of a value that does not fit, with the name of the table; other errors as they are. */
  private static Exception withTable(AnalysisException error, String name) {
    String condition = error.getCondition();
    Map parameters = new HashMap(error.getMessageParameters());
    if (condition == null || !condition.startsWith("INCOMPATIBLE_DATA_FOR_TABLE") || !NO_NAME.equals(parameters.get("tableName"))) return error;
    parameters.put("tableName", name);
    return new AnalysisException(condition, scala.collection.immutable.Map$.MODULE$.from(scala.jdk.javaapi.CollectionConverters.asScala(parameters)));
  }

  /** The name of the table of the catalog whose columns a statement sets; null for other statements. */
  private String assignedTable(LogicalPlan plan) {
    if (!(plan instanceof UpdateTable || plan instanceof MergeIntoTable)) return null;
    LogicalPlan target = target(plan);
    Object[] named = target instanceof UnresolvedRelation ? identifier(session, (UnresolvedRelation) target) : null;
    if (named == null) return null;
    List parts = new ArrayList(Arrays.asList(((Identifier) named[1]).namespace()));
    parts.add(0, ((AbstractLanceCatalog) named[0]).name());
    parts.add(((Identifier) named[1]).name());
    for (int i = 0; i < parts.size(); i++) parts.set(i, "`" + ((String) parts.get(i)).replace("`", "``") + "`");
    return String.join(".", parts);
  }

  /** Returns why a statement must not run, or null. */
  private AnalysisException refusal(LogicalPlan plan) throws Exception {
    if (plan instanceof ExplainCommand) return explainRefusal(((ExplainCommand) plan).logicalPlan());
    LogicalPlan target = target(plan);
    if (!(target instanceof UnresolvedRelation)) return null;
    UnresolvedRelation relation = (UnresolvedRelation) target;
    if (evolves(plan) && relation.options().containsKey("branch")) {
      Object[] named = identifier(session, relation);
      if (named != null && !((AbstractLanceCatalog) named[0]).opensBranches()) {
        return refused("evolve", String.join(".", parts(relation)) + ", branch " + relation.options().get("branch"),
            "Before 4.3, Spark would add the columns to the table, and not to the branch. Add the columns first with open_table(name, branch=...).add_columns().");
      }
    }
    LanceTable table = null;
    Iterator each = assigned(plan).iterator();
    while (each.hasNext()) {
      Assignment assignment = (Assignment) each.next();
      List parts = Reflection.list(((UnresolvedAttribute) assignment.key()).nameParts());
      String name = (String) parts.get(parts.size() - 1);
      if (!ROW_COLUMNS.contains(name.toLowerCase(Locale.ROOT)) && !mayBeBytes(assignment.value())) continue;
      if (table == null) table = table(relation);
      if (table == null) return null;
      String operation = plan instanceof UpdateTable ? "update" : "merge";
      // A field of a struct may have any name.
      boolean field = parts.size() > 1 && table.schema().getFieldIndex((String) parts.get(parts.size() - 2)).isDefined();
      boolean column = table.schema().getFieldIndex(name).isDefined();
      if (!field && !column && ROW_COLUMNS.contains(name.toLowerCase(Locale.ROOT))) {
        return table.refusal(operation, "a column that each row has is not set: " + name);
      }
      if (!field && table.isBlob(name) && !isItself(assignment)) {
        return table.refusal(operation, "SQL sets no blob: " + name + ": use merge_insert of the table API with the bytes");
      }
    }
    return null;
  }

  /** Spark changes the table while it analyzes schema evolution, also for EXPLAIN. */
  private AnalysisException explainRefusal(LogicalPlan explained) {
    LogicalPlan plan = explained instanceof UnresolvedWith ? ((UnresolvedWith) explained).child() : explained;
    LogicalPlan target = target(plan);
    if (!evolves(plan) || !(target instanceof UnresolvedRelation) || identifier(session, (UnresolvedRelation) target) == null) return null;
    return refused("explain", String.join(".", parts((UnresolvedRelation) target)),
        "EXPLAIN would add the columns. Explain the statement without WITH SCHEMA EVOLUTION.");
  }

  /** Whether a value may be one for a column of blobs: only then the table is opened to look. */
  private static boolean mayBeBytes(Expression value) {
    return !(value instanceof Literal) || value.dataType() instanceof BinaryType || value.dataType() instanceof NullType;
  }

  private static boolean isItself(Assignment assignment) {
    return assignment.value() instanceof UnresolvedAttribute && ((UnresolvedAttribute) assignment.value()).nameParts().last().equals(((UnresolvedAttribute) assignment.key()).nameParts().last());
  }

  private static AnalysisException refused(String operation, String where, String instead) {
    String text = "lance_spark.errors.UnsupportedOperationError: " + operation + " of " + where + " - nothing was changed - " + instead;
    return PythonGateway.error(operation, new PythonGateway.Failure("UnsupportedOperationError", text));
  }

  /** The table that a statement changes; null for a query. */
  private static LogicalPlan target(LogicalPlan plan) {
    Object table = null;
    if (plan instanceof InsertIntoStatement) table = ((InsertIntoStatement) plan).table();
    if (plan instanceof V2WriteCommand) table = ((V2WriteCommand) plan).table();
    if (plan instanceof UpdateTable) table = ((UpdateTable) plan).table();
    if (plan instanceof MergeIntoTable) table = ((MergeIntoTable) plan).targetTable();
    return table == null ? null : EliminateSubqueryAliases.apply((LogicalPlan) table);
  }

  private static boolean evolves(LogicalPlan plan) {
    try {
      return Boolean.TRUE.equals(Reflection.call(plan, "withSchemaEvolution"));
    } catch (Exception error) {
      return false;
    }
  }

  /** The assignments of a statement. */
  private static List assigned(LogicalPlan plan) {
    List found = new ArrayList();
    if (plan instanceof UpdateTable || plan instanceof MergeIntoTable) addAssigned(Reflection.list(plan.expressions()), found);
    return found;
  }

  private static void addAssigned(List expressions, List found) {
    Iterator each = expressions.iterator();
    while (each.hasNext()) {
      Expression e = (Expression) each.next();
      if (e instanceof Assignment && ((Assignment) e).key() instanceof UnresolvedAttribute) found.add(e);
      addAssigned(Reflection.list(e.children()), found);
    }
  }

  private LanceTable table(UnresolvedRelation relation) {
    Object[] named = identifier(session, relation);
    try {
      Table table = named == null ? null : ((AbstractLanceCatalog) named[0]).loadTable((Identifier) named[1]);
      return table instanceof LanceTable ? (LanceTable) table : null;
    } catch (NoSuchTableException error) {
      return null;
    }
  }

  private static List parts(UnresolvedRelation relation) {
    return Reflection.list(relation.multipartIdentifier());
  }

  /** The catalog and the identifier of a relation; null where the catalog is another one. */
  static Object[] identifier(SparkSession session, UnresolvedRelation relation) {
    SparkRelease.Catalogs catalogs = new SparkRelease.Catalogs(session);
    List parts = new ArrayList(parts(relation));
    boolean qualified = parts.size() > 1 && catalogs.isRegistered((String) parts.get(0));
    CatalogPlugin catalog = qualified ? catalogs.named((String) parts.remove(0)) : catalogs.current();
    if (!(catalog instanceof AbstractLanceCatalog)) return null;
    String name = (String) parts.remove(parts.size() - 1);
    String[] namespace = parts.isEmpty() && !qualified ? catalogs.currentNamespace() : (String[]) parts.toArray(new String[0]);
    return new Object[] {catalog, Identifier.of(namespace, name)};
  }

  /**
   * TIMESTAMP AS OF an expression: Spark takes `lance.t` for a path of the data source `lance` where the expression is resolved later than
   * the name, so it is resolved first.
   */
  private static final class Moments extends AbstractPartialFunction {
    private final SparkSession session;

    Moments(SparkSession session) {
      this.session = session;
    }

    public boolean isDefinedAt(Object node) {
      if (!(node instanceof RelationTimeTravel) || ((RelationTimeTravel) node).timestamp().isEmpty()) return false;
      RelationTimeTravel travel = (RelationTimeTravel) node;
      Expression moment = (Expression) travel.timestamp().get();
      boolean settled = moment.resolved() && !SubqueryExpression$.MODULE$.hasSubquery(moment);
      return !settled && travel.relation() instanceof UnresolvedRelation && identifier(session, (UnresolvedRelation) travel.relation()) != null;
    }

    public Object apply(Object node) {
      try {
        Expression moment = settled((Expression) ((RelationTimeTravel) node).timestamp().get());
        return Reflection.copy((Product) node, "timestamp", new scala.Some(moment));
      } catch (Exception error) {
        Platform.throwException(error);
        return null;
      }
    }

    private Expression settled(Expression moment) {
      List columns = new ArrayList();
      columns.add(RowLevelCommand.as(moment, "moment"));
      Dataset row = Dataset$.MODULE$.ofRows(session, new Project(Reflection.seq(columns), new OneRowRelation()));
      Expression resolved = ((Alias) Reflection.list(((Project) row.queryExecution().analyzed()).projectList()).get(0)).child();
      if (!SubqueryExpression$.MODULE$.hasSubquery(resolved)) return resolved;
      Object value = row.queryExecution().executedPlan().executeCollect()[0].get(0, resolved.dataType());
      return new Literal(value, resolved.dataType());
    }
  }
}
