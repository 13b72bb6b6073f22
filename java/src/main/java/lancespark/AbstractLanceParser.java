package lancespark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import lancespark.StatementTokens.Token;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedProcedure;
import org.apache.spark.sql.catalyst.expressions.CreateArray;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.parser.NamedParameterContext;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.parser.PositionalParameterContext;
import org.apache.spark.sql.catalyst.plans.logical.Call;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.command.ExplainCommand;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

/**
 * The parser of a session, with the common methods of all releases of Spark. Statements of this
 * package on tables of its catalogs become calls of procedures. Every other text goes to the next
 * parser, unchanged.
 */
abstract class AbstractLanceParser implements ParserInterface {
  /** First words of the statements. A look at one word decides for most texts. */
  private static final List<String> FIRST_WORDS =
      List.of(
          "ALTER",
          "CREATE",
          "DESC",
          "DESCRIBE",
          "DROP",
          "EXPLAIN",
          "OPTIMIZE",
          "REFRESH",
          "RESTORE",
          "SHOW",
          "VACUUM");

  private final SparkSession session;
  final ParserInterface next;

  AbstractLanceParser(SparkSession session, ParserInterface next) {
    this.session = session;
    this.next = next;
  }

  @Override
  public LogicalPlan parsePlan(String sql) throws ParseException {
    LogicalPlan plan = plan(sql, null);
    return plan == null ? next.parsePlan(sql) : plan;
  }

  @Override
  public LogicalPlan parsePlanWithParameters(String sql, ParameterContext parameters)
      throws ParseException {
    LogicalPlan plan = plan(sql, parameters);
    return plan == null ? next.parsePlanWithParameters(sql, parameters) : plan;
  }

  /** Returns the plan of a statement of this package, or null for every other text. */
  private LogicalPlan plan(String sql, ParameterContext parameters) throws ParseException {
    boolean doubleQuotesNames = session.sessionState().conf().doubleQuotedIdentifiers();
    StatementTokens tokens = new StatementTokens(sql, doubleQuotesNames);
    if (FIRST_WORDS.stream().noneMatch(word -> startsWith(tokens, word))) return null;
    if (parameters != null) {
      String complete = substituted(tokens, parameters);
      return complete == null ? null : plan(complete, null);
    }
    Token first = tokens.peek();
    if (!tokens.accept("EXPLAIN")) return plan(tokens);
    tokens.skipOneOf("LOGICAL", "FORMATTED", "EXTENDED", "CODEGEN", "COST");
    String explain = tokens.text(first, tokens.peek());
    LogicalPlan explained = plan(tokens);
    if (explained == null) return null;
    ExplainCommand command = (ExplainCommand) next.parsePlan(explain + " SELECT 1");
    return SparkRelease.copy(command, "logicalPlan", explained);
  }

  /**
   * Puts the values of parameters into the text. Spark's own function parses the text, and so knows
   * only Spark's statements. Null if a value is missing.
   */
  private static String substituted(StatementTokens tokens, ParameterContext parameters) {
    if (parameters instanceof NamedParameterContext named) {
      var values = Scala.map(named.params());
      return tokens.substituted(":", name -> sqlOf(values.get(name)));
    }
    if (parameters instanceof PositionalParameterContext positional) {
      Iterator<Expression> values = Scala.list(positional.params()).iterator();
      return tokens.substituted("?", mark -> values.hasNext() ? sqlOf(values.next()) : null);
    }
    return null;
  }

  private static String sqlOf(Expression value) {
    return value == null ? null : value.sql();
  }

  private static boolean startsWith(StatementTokens tokens, String word) {
    boolean starts = tokens.accept(word);
    tokens.reset(0);
    return starts;
  }

  private LogicalPlan plan(StatementTokens tokens) throws ParseException {
    LanceStatement statement = LanceStatement.of(tokens);
    if (statement == null) return null;
    LanceUnresolved.Location location = location(statement.table());
    if (location == null) return null;
    if (statement instanceof LanceStatement.About about) return about(about, location);
    if (statement instanceof LanceStatement.View view) {
      return LanceViews.created(session, next.parsePlan(view.sql()), view.fills());
    }
    LanceStatement.Procedure procedure = (LanceStatement.Procedure) statement;
    List<Expression> arguments = new ArrayList<>();
    for (var argument : procedure.arguments().entrySet()) {
      Expression value = expression(argument.getValue());
      arguments.add(new NamedArgumentExpression(argument.getKey(), value));
    }
    return call(location, procedure.name(), arguments);
  }

  /** Returns the table in a catalog of this package, or null. */
  private LanceUnresolved.Location location(List<String> table) {
    try {
      return LanceUnresolved.location(session, table);
    } catch (Exception error) {
      // The next parser reports the failure of a foreign catalog.
      return null;
    }
  }

  /** Makes a call of a procedure of the catalog. */
  static Call call(
      LanceUnresolved.Location location, String procedure, List<Expression> arguments) {
    List<Expression> all = new ArrayList<>();
    all.add(new NamedArgumentExpression("table", text(location.quotedName())));
    all.addAll(arguments);
    List<String> name = List.of(location.catalog().name(), "system", procedure);
    return new Call(new UnresolvedProcedure(Scala.seq(name)), Scala.seq(all), true);
  }

  static Expression text(String value) {
    return Literal$.MODULE$.apply(value);
  }

  private Expression expression(LanceStatement.Argument argument) throws ParseException {
    if (argument instanceof LanceStatement.Text text) return text(text.value());
    if (argument instanceof LanceStatement.Sql sql) return next.parseExpression(sql.source());
    if (argument instanceof LanceStatement.Texts texts) {
      return new CreateArray(
          Scala.seq(texts.values().stream().map(AbstractLanceParser::text).toList()));
    }
    LanceStatement.Condition condition = (LanceStatement.Condition) argument;
    // Only for its error: Spark evaluates the text over the table.
    next.parseExpression(condition.source());
    return text(condition.source());
  }

  /** Makes the query of a table about a table, the newest versions first. */
  private LogicalPlan about(LanceStatement.About about, LanceUnresolved.Location location)
      throws ParseException {
    boolean isHistory = about.name().equals("versions");
    if (isHistory && about.table().size() == 1 && describesColumn(location)) return null;
    String table =
        location.quotedName()
            + "."
            + LanceUnresolved.quoteIdentifier(LanceMetadataTable.PREFIX + about.name());
    String order = isHistory ? " ORDER BY version DESC" : "";
    return next.parsePlan("SELECT * FROM " + table + order);
  }

  /** Tells whether `DESCRIBE history c` is about a column of a table with the name `history`. */
  private static boolean describesColumn(LanceUnresolved.Location location) {
    String[] namespace = location.identifier().namespace();
    return !location.catalog().tableExists(location.identifier())
        && location.catalog().tableExists(Identifier.of(namespace, "history"));
  }

  @Override
  public Expression parseExpression(String sql) throws ParseException {
    return next.parseExpression(sql);
  }

  @Override
  public TableIdentifier parseTableIdentifier(String sql) throws ParseException {
    return next.parseTableIdentifier(sql);
  }

  @Override
  public FunctionIdentifier parseFunctionIdentifier(String sql) throws ParseException {
    return next.parseFunctionIdentifier(sql);
  }

  @Override
  public Seq<String> parseMultipartIdentifier(String sql) throws ParseException {
    return next.parseMultipartIdentifier(sql);
  }

  @Override
  public LogicalPlan parseQuery(String sql) throws ParseException {
    return next.parseQuery(sql);
  }

  @Override
  public StructType parseRoutineParam(String sql) throws ParseException {
    return next.parseRoutineParam(sql);
  }

  @Override
  public StructType parseTableSchema(String sql) throws ParseException {
    return next.parseTableSchema(sql);
  }

  @Override
  public DataType parseDataType(String sql) throws ParseException {
    return next.parseDataType(sql);
  }
}
