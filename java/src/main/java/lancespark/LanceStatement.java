package lancespark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import lancespark.StatementTokens.Kind;
import lancespark.StatementTokens.Token;

/** A statement of this package, recognized by its words. LanceParser makes a plan of it. */
sealed interface LanceStatement {
  /** The name of the table, as in the statement. */
  List<String> table();

  /** A call of a procedure, with arguments after the table: lance_spark/sql/procedures/calls.py. */
  record Procedure(List<String> table, String name, Map<String, Argument> arguments)
      implements LanceStatement {}

  /** A query of a table about a table, for example `.tags`. */
  record About(List<String> table, String name) implements LanceStatement {}

  /** CREATE MATERIALIZED VIEW with a clause outside of Spark's grammar. */
  record View(List<String> table, String sql, boolean fills) implements LanceStatement {}

  /** A value of a statement. */
  sealed interface Argument {}

  record Text(String value) implements Argument {}

  record Texts(List<String> values) implements Argument {}

  /** An expression of Spark SQL. */
  record Sql(String source) implements Argument {}

  /** The text of a condition of Spark SQL. */
  record Condition(String source) implements Argument {}

  /** Returns the statement, or null for every other text. */
  static LanceStatement of(StatementTokens tokens) {
    return new Grammar(tokens).statement();
  }

  /** The grammar. A rule returns null for tokens of another statement. */
  final class Grammar {
    private static final Set<String> ABOUT = Set.of("TAGS", "BRANCHES", "INDEXES", "JOBS");
    private final StatementTokens tokens;

    Grammar(StatementTokens tokens) {
      this.tokens = tokens;
    }

    private LanceStatement statement() {
      Token first = tokens.peek();
      if (tokens.accept("REFRESH")) return whole(this::refreshColumn, this::refreshView);
      if (tokens.accept("OPTIMIZE")) return whole(this::optimizeIndex, this::optimize);
      if (tokens.accept("VACUUM")) return whole(this::vacuum);
      if (tokens.accept("DESCRIBE") || tokens.accept("DESC")) return whole(this::history);
      if (tokens.accept("RESTORE")) return whole(this::restoreTable, this::restore);
      if (tokens.accept("SHOW")) return whole(this::show);
      if (tokens.accept("CREATE", "MATERIALIZED", "VIEW")) return createView(first);
      if (tokens.accept("DROP", "MATERIALIZED", "VIEW")) return whole(this::dropView);
      if (tokens.accept("ALTER", "TABLE")) return whole(this::alter);
      return null;
    }

    /** Returns the first statement with its end at the end of the text. */
    @SafeVarargs
    private LanceStatement whole(Supplier<LanceStatement>... rules) {
      int start = tokens.position();
      for (Supplier<LanceStatement> rule : rules) {
        LanceStatement statement = rule.get();
        if (statement != null && statement.table() != null && tokens.atEnd()) return statement;
        tokens.reset(start);
      }
      return null;
    }

    /** `REFRESH COLUMN c ON t [WHERE p] [WITH (k = v, ...)]`. */
    private LanceStatement refreshColumn() {
      if (!tokens.accept("COLUMN")) return null;
      String column = tokens.name();
      if (column == null || !tokens.accept("ON")) return null;
      List<String> table = tokens.parts();
      if (table == null) return null;
      Map<String, Argument> arguments = with("column", new Text(column));
      if (tokens.accept("WHERE")) {
        Token end = endOfCondition();
        String condition = tokens.textUntil(end);
        if (condition.isEmpty()) return null;
        arguments.put("where", new Condition(condition));
        while (tokens.peek().start() < end.start()) tokens.take();
      }
      return addOptions(arguments) ? new Procedure(table, "backfill", arguments) : null;
    }

    /** Returns the WITH of options at the end of the statement, or the end of the statement. */
    private Token endOfCondition() {
      int start = tokens.position();
      int depth = 0;
      Token end = null;
      while (tokens.peek().kind() != Kind.END) {
        Token token = tokens.take();
        String text = token.kind() == Kind.MARK ? tokens.text(token) : "";
        if (text.equals("(")) depth++;
        if (text.equals(")")) depth--;
        boolean isWith = token.kind() == Kind.WORD && tokens.text(token).equalsIgnoreCase("WITH");
        if (depth == 0 && (isWith || (text.equals(";") && end == null))) end = token;
      }
      if (end == null) end = tokens.peek();
      tokens.reset(start);
      return end;
    }

    /** `REFRESH MATERIALIZED VIEW v`. */
    private LanceStatement refreshView() {
      if (!tokens.accept("MATERIALIZED", "VIEW")) return null;
      List<String> view = tokens.parts();
      Map<String, Argument> arguments = new LinkedHashMap<>();
      return addOptions(arguments) ? new Procedure(view, "refresh", arguments) : null;
    }

    /** `DROP MATERIALIZED VIEW [IF EXISTS] v`. */
    private LanceStatement dropView() {
      Map<String, Argument> arguments = new LinkedHashMap<>();
      if (tokens.accept("IF", "EXISTS")) arguments.put("if_exists", new Sql("true"));
      return new Procedure(tokens.parts(), "drop_materialized_view", arguments);
    }

    /** `CREATE MATERIALIZED VIEW v ... WITH [NO] DATA`. Spark parses the rest. */
    private LanceStatement createView(Token first) {
      boolean skips = tokens.accept("IF", "NOT", "EXISTS");
      List<String> view = tokens.parts();
      if (view == null || (skips && view.isEmpty())) return null;
      List<Token> last = new ArrayList<>();
      while (tokens.peek().kind() != Kind.END) {
        int start = tokens.position();
        if (tokens.atEnd()) break;
        tokens.reset(start);
        last.add(tokens.take());
        if (last.size() > 3) last.remove(0);
      }
      int count = last.size();
      if (count < 3 || !isWord(last.get(count - 1), "DATA")) return null;
      boolean isEmpty = isWord(last.get(1), "NO") && isWord(last.get(0), "WITH");
      if (!isEmpty && !isWord(last.get(1), "WITH")) return null;
      return new View(view, tokens.text(first, last.get(isEmpty ? 0 : 1)), !isEmpty);
    }

    private boolean isWord(Token token, String word) {
      return token.kind() == Kind.WORD && tokens.text(token).equalsIgnoreCase(word);
    }

    /** `OPTIMIZE INDEX i ON t [WITH (k = v, ...)]`. */
    private LanceStatement optimizeIndex() {
      if (!tokens.accept("INDEX")) return null;
      String index = tokens.name();
      if (index == null || !tokens.accept("ON")) return null;
      List<String> table = tokens.parts();
      Map<String, Argument> arguments = with("index", new Text(index));
      return addOptions(arguments) ? new Procedure(table, "optimize_indices", arguments) : null;
    }

    /** `OPTIMIZE t [WITH (k = v, ...)]`. */
    private LanceStatement optimize() {
      List<String> table = tokens.parts();
      Map<String, Argument> arguments = new LinkedHashMap<>();
      return addOptions(arguments) ? new Procedure(table, "compact", arguments) : null;
    }

    /** `VACUUM t [WITH (k = v, ...)] [RETAIN n HOURS]`. */
    private LanceStatement vacuum() {
      List<String> table = tokens.parts();
      Map<String, Argument> arguments = new LinkedHashMap<>();
      if (!addOptions(arguments)) return null;
      if (tokens.accept("RETAIN")) {
        String sign = tokens.accept("-") ? "-" : "";
        Token number = tokens.take();
        boolean isSpan = number.kind() == Kind.NUMBER && tokens.accept("HOURS");
        if (!isSpan || arguments.containsKey("retain_hours")) return null;
        arguments.put("retain_hours", new Sql(sign + tokens.text(number)));
      }
      return new Procedure(table, "cleanup", arguments);
    }

    /** `DESCRIBE HISTORY t`. */
    private LanceStatement history() {
      return tokens.accept("HISTORY") ? new About(tokens.parts(), "versions") : null;
    }

    private LanceStatement restoreTable() {
      return tokens.accept("TABLE") ? restore() : null;
    }

    /** `RESTORE [TABLE] t TO VERSION AS OF n`. */
    private LanceStatement restore() {
      List<String> table = tokens.parts();
      if (table == null || !tokens.accept("TO", "VERSION", "AS", "OF")) return null;
      Argument version = reference();
      return version == null ? null : new Procedure(table, "restore", with("version", version));
    }

    /** `SHOW TAGS | BRANCHES | INDEXES | JOBS [FROM | IN] t`. */
    private LanceStatement show() {
      String what = tokens.name();
      if (what == null || !ABOUT.contains(what.toUpperCase(java.util.Locale.ROOT))) return null;
      tokens.skipOneOf("FROM", "IN");
      return new About(tokens.parts(), what.toLowerCase(java.util.Locale.ROOT));
    }

    /** Clauses of `ALTER TABLE t`. */
    private LanceStatement alter() {
      List<String> table = tokens.parts();
      if (table == null) return null;
      if (tokens.accept("CREATE", "TAG")) return createName(table, "tag", "version");
      if (tokens.accept("CREATE", "BRANCH")) return createName(table, "create_branch", "from_ref");
      if (tokens.accept("DROP", "TAG")) return dropName(table, "drop_tag");
      if (tokens.accept("DROP", "BRANCH")) return dropName(table, "drop_branch");
      if (tokens.accept("SET", "UNENFORCED", "PRIMARY", "KEY", "(")) {
        List<String> columns = columns();
        if (columns == null || !tokens.accept(")")) return null;
        return new Procedure(table, "set_primary_key", with("columns", new Texts(columns)));
      }
      if (tokens.accept("ADD", "COLUMNS")) return columnsFrom(table, "add_columns");
      if (tokens.accept("UPDATE", "COLUMNS")) return columnsFrom(table, "update_columns");
      return null;
    }

    /** `[IF NOT EXISTS] n [AS OF [VERSION] v]`. */
    private LanceStatement createName(List<String> table, String procedure, String reference) {
      Map<String, Argument> arguments = new LinkedHashMap<>();
      if (tokens.accept("IF", "NOT", "EXISTS")) arguments.put("if_not_exists", new Sql("true"));
      Argument name = reference();
      if (name == null) return null;
      arguments.put("name", name);
      if (tokens.accept("AS", "OF")) {
        int start = tokens.position();
        tokens.skipOneOf("VERSION");
        Argument version = reference();
        if (version == null) {
          // A tag or a branch may have the name VERSION.
          tokens.reset(start);
          version = reference();
        }
        if (version == null) return null;
        arguments.put(reference, version);
      }
      return new Procedure(table, procedure, arguments);
    }

    /** `[IF EXISTS] n`. */
    private LanceStatement dropName(List<String> table, String procedure) {
      Map<String, Argument> arguments = new LinkedHashMap<>();
      if (tokens.accept("IF", "EXISTS")) arguments.put("if_exists", new Sql("true"));
      Argument name = reference();
      if (name == null) return null;
      arguments.put("name", name);
      return new Procedure(table, procedure, arguments);
    }

    /** `c, ... FROM view`. */
    private LanceStatement columnsFrom(List<String> table, String procedure) {
      List<String> columns = columns();
      if (columns == null || !tokens.accept("FROM")) return null;
      List<String> view = tokens.parts();
      if (view == null) return null;
      Map<String, Argument> arguments = with("columns", new Texts(columns));
      arguments.put("source", new Text(LanceUnresolved.quoteName(view)));
      return new Procedure(table, procedure, arguments);
    }

    private List<String> columns() {
      List<String> columns = new ArrayList<>();
      do {
        String column = tokens.name();
        if (column == null) return null;
        columns.add(column);
      } while (tokens.accept(","));
      return columns;
    }

    /** A name, a text or a number, which names a tag, a branch or a version; or null. */
    private Argument reference() {
      Kind kind = tokens.peek().kind();
      if (kind == Kind.TEXT || kind == Kind.NUMBER) return new Sql(tokens.text(tokens.take()));
      String name = tokens.name();
      return name == null ? null : new Text(name);
    }

    private static Map<String, Argument> with(String name, Argument value) {
      Map<String, Argument> arguments = new LinkedHashMap<>();
      arguments.put(name, value);
      return arguments;
    }

    /** Adds `WITH (k = v, ...)`. Tells whether the tokens are none or such a list. */
    private boolean addOptions(Map<String, Argument> arguments) {
      if (!tokens.accept("WITH")) return true;
      if (!tokens.accept("(")) return false;
      do {
        String key = optionKey();
        if (key == null || arguments.containsKey(key) || !tokens.accept("=")) return false;
        Token end = endOfValue();
        String value = tokens.textUntil(end);
        if (value.isEmpty()) return false;
        arguments.put(key, new Sql(value));
        while (tokens.peek().start() < end.start()) tokens.take();
      } while (tokens.accept(","));
      return tokens.accept(")");
    }

    /** Takes a name, or a text of letters, digits and underscores. */
    private String optionKey() {
      Token token = tokens.peek();
      String key = token.kind() == Kind.TEXT ? tokens.text(tokens.take()) : tokens.name();
      if (key == null) return null;
      if (token.kind() == Kind.TEXT) key = key.substring(1, key.length() - 1);
      return key.matches("\\w+") ? key.toLowerCase(java.util.Locale.ROOT) : null;
    }

    /** Returns the comma or the parenthesis after a value. */
    private Token endOfValue() {
      int start = tokens.position();
      int depth = 0;
      Token end = tokens.peek();
      while (end.kind() != Kind.END) {
        String text = end.kind() == Kind.MARK ? tokens.text(end) : "";
        if (depth == 0 && (text.equals(",") || text.equals(")"))) break;
        if (text.equals("(")) depth++;
        if (text.equals(")")) depth--;
        tokens.take();
        end = tokens.peek();
      }
      tokens.reset(start);
      return end;
    }
  }
}
