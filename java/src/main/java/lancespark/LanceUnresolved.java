package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.QueryPlanningTracker$;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedProcedure;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.command.ExplainCommand;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.NullType;
import scala.Option;

/** Checks statements on tables of the catalog before Spark resolves them. */
final class LanceUnresolved extends Rule<LogicalPlan> {
  private static final Set<String> ROW_COLUMNS =
      Set.of("_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version");

  /** Spark's quotation of an empty name. */
  private static final String NO_NAME = "``";

  /** Set during the analysis of a statement within Spark's own analysis. */
  private static final ThreadLocal<Boolean> ANALYZING = new ThreadLocal<>();

  private final SparkSession session;

  LanceUnresolved(SparkSession session) {
    this.session = session;
  }

  /** A table of a catalog of this package. */
  record Location(AbstractLanceCatalog catalog, Identifier identifier) {
    String quotedName() {
      Stream<String> parts =
          Stream.of(
                  Stream.of(catalog.name()),
                  Stream.of(identifier.namespace()),
                  Stream.of(identifier.name()))
              .flatMap(part -> part);
      return quoteName(parts.toList());
    }
  }

  /** Quotes each part of a name. */
  static String quoteName(List<String> parts) {
    return parts.stream().map(LanceUnresolved::quoteIdentifier).collect(Collectors.joining("."));
  }

  /**
   * Divides the name of a table as procedures take it. A name with a slash and without backquotes
   * is a path. A name with an unclosed backquote is a single part.
   */
  static List<String> partsOf(String name) {
    if (name.contains("/") && !name.contains("`")) return List.of(name);
    if (!name.contains("`")) return List.of(name.split("\\.", -1));
    StatementTokens tokens = new StatementTokens(name, false);
    List<String> parts = tokens.parts();
    return parts != null && tokens.peek().kind() == StatementTokens.Kind.END
        ? parts
        : List.of(name);
  }

  static String quoteIdentifier(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  @Override
  public LogicalPlan apply(LogicalPlan statement) {
    LogicalPlan plan = LanceSearches.located(session, LanceViews.replaced(session, statement));
    AnalysisException refusal;
    try {
      // The analysis of an UPDATE or a MERGE comes here again with the same statement.
      refusal = ANALYZING.get() == null ? refusal(plan) : null;
    } catch (Exception error) {
      refusal = null;
    }
    if (refusal != null) throw Errors.thrown(refusal);
    LogicalPlan resolved =
        plan.resolveOperators(
            Trees.rule(this::hasUnresolvedMoment, node -> withMoment((RelationTimeTravel) node)));
    String name = ANALYZING.get() == null ? assignedTable(resolved) : null;
    return name == null ? resolved : analyzed(resolved, name);
  }

  /**
   * Analyzes an UPDATE or a MERGE. Spark's error of a value that does not fit its column has an
   * empty table name in these statements, and no rule sees the values before the error.
   */
  private LogicalPlan analyzed(LogicalPlan statement, String name) {
    ANALYZING.set(true);
    try {
      QueryPlanningTracker tracker = Scala.orNull(QueryPlanningTracker$.MODULE$.get());
      if (tracker == null) tracker = new QueryPlanningTracker(Option.empty());
      return session.sessionState().analyzer().executeAndCheck(statement, tracker);
    } catch (Exception error) {
      throw Errors.thrown(
          error instanceof AnalysisException analysis ? withTable(analysis, name) : error);
    } finally {
      ANALYZING.remove();
    }
  }

  /** Adds the name of the table to the error of a value that does not fit its column. */
  private static Exception withTable(AnalysisException error, String name) {
    String condition = error.getCondition();
    Map<String, String> parameters = new HashMap<>(error.getMessageParameters());
    if (condition == null
        || !condition.startsWith("INCOMPATIBLE_DATA_FOR_TABLE")
        || !NO_NAME.equals(parameters.get("tableName"))) {
      return error;
    }
    parameters.put("tableName", name);
    return Errors.ofSpark(condition, parameters);
  }

  /** Returns the name of the target of UPDATE or MERGE in the catalog, or null. */
  private String assignedTable(LogicalPlan plan) {
    if (!(plan instanceof UpdateTable || plan instanceof MergeIntoTable)) return null;
    Location location =
        target(plan) instanceof UnresolvedRelation relation ? location(session, relation) : null;
    return location == null ? null : location.quotedName();
  }

  /** Returns the error of a refused statement, or null. */
  private AnalysisException refusal(LogicalPlan plan) {
    if (plan instanceof ExplainCommand explain) return explainRefusal(explain.logicalPlan());
    if (plan instanceof Call call) return argumentRefusal(call);
    if (!(target(plan) instanceof UnresolvedRelation relation)) return null;
    String branch = relation.options().get("branch");
    if (branch != null
        && !SparkRelease.HANDS_OVER_OPTIONS
        && evolves(plan)
        && location(session, relation) != null) {
      return branchRefusal(dottedName(relation), branch);
    }
    return assignmentRefusal(plan, relation);
  }

  /** Returns the error of an assignment to a row column or a blob, or null. */
  private AnalysisException assignmentRefusal(LogicalPlan plan, UnresolvedRelation relation) {
    LanceTable table = null;
    for (Assignment assignment : assignments(plan)) {
      List<String> parts = Scala.list(((UnresolvedAttribute) assignment.key()).nameParts());
      String name = parts.get(parts.size() - 1);
      boolean isRowColumn = ROW_COLUMNS.contains(name.toLowerCase(Locale.ROOT));
      if (!isRowColumn && !mayBeBytes(assignment.value())) continue;
      if (table == null) table = table(relation);
      if (table == null) return null;
      String operation = plan instanceof UpdateTable ? "update" : "merge";
      // A field of a struct may have any name.
      boolean isField = parts.size() > 1 && hasColumn(table, parts.get(parts.size() - 2));
      if (isRowColumn && !isField && !hasColumn(table, name)) {
        return table.refusal(
            operation, "No statement sets the row column " + name + ". Leave it out.");
      }
      if (!isField && table.isBlob(name) && !isItself(assignment)) {
        return table.refusal(
            operation,
            "SQL sets no blob: " + name + ". Use merge_insert of the table API with the bytes.");
      }
    }
    return null;
  }

  private static boolean hasColumn(LanceTable table, String name) {
    return table.schema().getFieldIndex(name).isDefined();
  }

  /**
   * Refuses a subquery as argument of a procedure, which ends Spark's analysis without a reason.
   */
  private AnalysisException argumentRefusal(Call call) {
    if (!(call.procedure() instanceof UnresolvedProcedure procedure)) return null;
    List<String> name = Scala.list(procedure.nameParts());
    if (location(session, name) == null) return null;
    List<Expression> arguments = Scala.list(call.args());
    for (int i = 0; i < arguments.size(); i++) {
      if (!SubqueryExpression$.MODULE$.hasSubquery(arguments.get(i))) continue;
      String argument =
          arguments.get(i) instanceof NamedArgumentExpression named
              ? named.key()
              : String.valueOf(i + 1);
      return refusal(
          "call",
          String.join(".", name) + ", argument " + argument + ", which is a subquery",
          "An argument is a constant expression. Run the query first, and pass its value.");
    }
    return null;
  }

  /** Refuses EXPLAIN of schema evolution: Spark changes the table during the analysis. */
  private AnalysisException explainRefusal(LogicalPlan statement) {
    LogicalPlan plan = statement instanceof UnresolvedWith with ? with.child() : statement;
    if (!evolves(plan) || !(target(plan) instanceof UnresolvedRelation relation)) return null;
    if (location(session, relation) == null) return null;
    return refusal(
        "explain",
        dottedName(relation),
        "EXPLAIN would add the columns. Explain the statement without WITH SCHEMA EVOLUTION.");
  }

  /** Tells whether a value may be a blob. Only the open table can decide. */
  private static boolean mayBeBytes(Expression value) {
    if (value instanceof BinaryArithmetic) return false;
    return !(value instanceof Literal)
        || value.dataType() instanceof BinaryType
        || value.dataType() instanceof NullType;
  }

  private static boolean isItself(Assignment assignment) {
    return assignment.value() instanceof UnresolvedAttribute value
        && assignment.key() instanceof UnresolvedAttribute key
        && value.nameParts().last().equals(key.nameParts().last());
  }

  /** Returns the error of schema evolution of a branch, before Spark 4.3. */
  static AnalysisException branchRefusal(String table, String branch) {
    return refusal(
        "evolve",
        table + ", branch " + branch,
        "Before 4.3, Spark would add the columns to the table, and not to the branch. Add the"
            + " columns first with open_table(name, branch=...).add_columns().");
  }

  private static AnalysisException refusal(String operation, String where, String instead) {
    return Errors.unsupported(
        operation, operation + " of " + where + ". Nothing was changed. " + instead);
  }

  /** Returns the target of a statement, or null for a query. */
  private static LogicalPlan target(LogicalPlan plan) {
    Object table = null;
    if (plan instanceof InsertIntoStatement insert) table = insert.table();
    if (plan instanceof V2WriteCommand write) table = write.table();
    if (plan instanceof UpdateTable update) table = update.table();
    if (plan instanceof MergeIntoTable merge) table = merge.targetTable();
    return table == null ? null : EliminateSubqueryAliases.apply((LogicalPlan) table);
  }

  private static boolean evolves(LogicalPlan plan) {
    try {
      return Boolean.TRUE.equals(SparkRelease.call(plan, "withSchemaEvolution"));
    } catch (IllegalStateException error) {
      // Only some plans have the field.
      return false;
    }
  }

  /** Returns the assignments of UPDATE and MERGE. */
  private static List<Assignment> assignments(LogicalPlan plan) {
    List<Assignment> assignments = new ArrayList<>();
    if (plan instanceof UpdateTable || plan instanceof MergeIntoTable) {
      collectAssignments(Scala.list(plan.expressions()), assignments);
    }
    return assignments;
  }

  private static void collectAssignments(List<Expression> expressions, List<Assignment> result) {
    for (Expression e : expressions) {
      if (e instanceof Assignment assignment && assignment.key() instanceof UnresolvedAttribute) {
        result.add(assignment);
      }
      collectAssignments(Trees.children(e), result);
    }
  }

  private LanceTable table(UnresolvedRelation relation) {
    Location location = location(session, relation);
    if (location == null) return null;
    try {
      return location.catalog().loadTable(location.identifier()) instanceof LanceTable table
          ? table
          : null;
    } catch (NoSuchTableException error) {
      return null;
    }
  }

  private static String dottedName(UnresolvedRelation relation) {
    return String.join(".", Scala.list(relation.multipartIdentifier()));
  }

  static Location location(SparkSession session, UnresolvedRelation relation) {
    return location(session, Scala.list(relation.multipartIdentifier()));
  }

  /**
   * Returns the catalog and the identifier of a table, or null for other catalogs and for tables of
   * Spark in its session catalog.
   */
  static Location location(SparkSession session, List<String> name) {
    var catalogs = SparkRelease.Catalogs.of(session);
    List<String> parts = new ArrayList<>(name);
    boolean isQualified = parts.size() > 1 && catalogs.isRegistered(parts.get(0));
    var plugin = isQualified ? catalogs.byName(parts.remove(0)) : catalogs.current();
    if (!(plugin instanceof AbstractLanceCatalog catalog)) return null;
    String table = parts.remove(parts.size() - 1);
    String[] namespace =
        parts.isEmpty() && !isQualified
            ? catalogs.currentNamespace()
            : parts.toArray(new String[0]);
    Identifier identifier = Identifier.of(namespace, table);
    if (catalog instanceof LanceSessionCatalog sessionCatalog) {
      identifier = sessionCatalog.lanceName(identifier);
    }
    return identifier == null ? null : new Location(catalog, identifier);
  }

  /**
   * Finds TIMESTAMP AS OF an unresolved expression. Spark would treat `lance.t` as a path of the
   * data source `lance` until then.
   */
  private boolean hasUnresolvedMoment(LogicalPlan node) {
    if (!(node instanceof RelationTimeTravel travel) || travel.timestamp().isEmpty()) return false;
    Expression moment = travel.timestamp().get();
    boolean resolved = moment.resolved() && !SubqueryExpression$.MODULE$.hasSubquery(moment);
    return !resolved
        && travel.relation() instanceof UnresolvedRelation relation
        && location(session, relation) != null;
  }

  private LogicalPlan withMoment(RelationTimeTravel travel) {
    Expression moment = resolved(travel.timestamp().get());
    return SparkRelease.copy(travel, "timestamp", Option.apply(moment));
  }

  private Expression resolved(Expression moment) {
    var columns = LancePushdown.namedSeq(List.of(Trees.alias(moment, "moment")));
    QueryExecution row =
        Dataset$.MODULE$
            .ofRows(session, new Project(columns, new OneRowRelation()))
            .queryExecution();
    Expression resolved = ((Alias) ((Project) row.analyzed()).projectList().head()).child();
    if (!SubqueryExpression$.MODULE$.hasSubquery(resolved)) return resolved;
    Object value = row.executedPlan().executeCollect()[0].get(0, resolved.dataType());
    return new Literal(value, resolved.dataType());
  }
}
