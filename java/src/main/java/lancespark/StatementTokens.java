package lancespark;

import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;

/**
 * The tokens of a statement, read one after the other, as Spark's lexer divides a text. The scan
 * goes no further than the reader.
 */
final class StatementTokens {
  enum Kind {
    WORD,
    QUOTED_NAME,
    TEXT,
    NUMBER,
    MARK,
    END
  }

  /** A token between two positions of the statement. */
  record Token(Kind kind, int start, int end) {}

  /** Kind of a mark outside of every grammar: an unclosed quotation or comment, or a hint. */
  private static final String HINT = "/*+";

  private static final Pattern NUMBER = Pattern.compile("(?i)\\d[\\d.]*(e\\d+)?(bd|[lsyfd])?");

  private final String sql;

  /** Whether double quotes are around names. Spark has a setting for this choice. */
  private final boolean doubleQuotesNames;

  private final List<Token> tokens = new ArrayList<>();
  private int scanned;
  private int next;

  StatementTokens(String sql, boolean doubleQuotesNames) {
    this.sql = sql;
    this.doubleQuotesNames = doubleQuotesNames;
  }

  int position() {
    return next;
  }

  void reset(int position) {
    next = position;
  }

  Token peek() {
    while (tokens.size() <= next) tokens.add(scan());
    return tokens.get(next);
  }

  Token take() {
    Token token = peek();
    next++;
    return token;
  }

  String text(Token token) {
    return sql.substring(token.start(), token.end());
  }

  /** Returns the text from the next token up to the start of another token. */
  String textUntil(Token end) {
    return sql.substring(peek().start(), end.start()).strip();
  }

  /** Returns the text from a token up to the start of another token. */
  String text(Token first, Token end) {
    return sql.substring(first.start(), end.start());
  }

  /** Moves past words and marks if the next tokens are these, in any case. */
  boolean accept(String... words) {
    int start = next;
    for (String word : words) {
      Token token = take();
      boolean isPlain = token.kind() == Kind.WORD || token.kind() == Kind.MARK;
      if (!isPlain || !text(token).equalsIgnoreCase(word)) {
        next = start;
        return false;
      }
    }
    return true;
  }

  /** Moves past any of several words, or leaves all tokens. Always true. */
  boolean skipOneOf(String... words) {
    for (String word : words) {
      if (accept(word)) break;
    }
    return true;
  }

  /** Takes a name. Returns null if the next token is something else. */
  String name() {
    Token token = peek();
    String text = text(token);
    if (token.kind() != Kind.WORD && token.kind() != Kind.QUOTED_NAME) return null;
    next++;
    if (token.kind() == Kind.WORD) return text;
    String quote = text.substring(0, 1);
    return text.substring(1, text.length() - 1).replace(quote + quote, quote);
  }

  /** Takes a name of one or more parts with dots between them, or returns null. */
  List<String> parts() {
    List<String> parts = new ArrayList<>();
    do {
      String part = name();
      if (part == null) return null;
      parts.add(part);
    } while (accept("."));
    return parts;
  }

  /**
   * Returns the statement with values in the place of parameters, or null if a value is missing.
   * The tokens stay at their place.
   *
   * @param mark `:`, which a name follows, or `?`
   */
  String substituted(String mark, UnaryOperator<String> valueOf) {
    int start = next;
    StringBuilder complete = new StringBuilder();
    int copied = 0;
    while (peek().kind() != Kind.END) {
      Token token = take();
      if (token.kind() != Kind.MARK || !text(token).equals(mark)) continue;
      Token last = mark.equals(":") ? take() : token;
      String value = valueOf.apply(text(last));
      if (value == null) {
        next = start;
        return null;
      }
      complete.append(sql, copied, token.start()).append(value);
      copied = last.end();
    }
    next = start;
    return complete.append(sql.substring(copied)).toString();
  }

  /** Tells whether only semicolons follow. */
  boolean atEnd() {
    boolean hasMore = true;
    while (hasMore) hasMore = accept(";");
    return peek().kind() == Kind.END;
  }

  private Token scan() {
    int start = skipped();
    if (start >= sql.length()) return new Token(Kind.END, sql.length(), sql.length());
    char first = sql.charAt(start);
    Kind kind = Kind.MARK;
    int end = start + 1;
    boolean isRaw =
        (first == 'r' || first == 'R') && end < sql.length() && "'\"".indexOf(sql.charAt(end)) >= 0;
    if (isRaw) {
      kind = Kind.TEXT;
      end = afterQuote(end, false);
    } else if (first == '`' || (first == '"' && doubleQuotesNames)) {
      kind = Kind.QUOTED_NAME;
      end = afterQuote(start, false);
    } else if (first == '\'' || first == '"') {
      kind = Kind.TEXT;
      end = afterQuote(start, true);
    } else if (first == '$') {
      end = afterDollars(start);
      kind = end > start + 1 ? Kind.TEXT : Kind.MARK;
    } else if (sql.startsWith(HINT, start)) {
      end = afterComment(start);
    } else if (isNamePart(first)) {
      end = afterName(start);
      boolean isNumber = NUMBER.matcher(sql).region(start, end).matches();
      kind = isNumber ? Kind.NUMBER : Kind.WORD;
    }
    if (end < 0) {
      // Spark's parser has the error of an unclosed quotation.
      kind = Kind.MARK;
      end = sql.length();
    }
    scanned = end;
    return new Token(kind, start, end);
  }

  private static boolean isNamePart(char c) {
    return Character.isLetterOrDigit(c) || c == '_';
  }

  /** Returns the end of a name or a number. A number may have a fraction. */
  private int afterName(int start) {
    int end = start;
    while (end < sql.length() && isNamePart(sql.charAt(end))) end++;
    boolean isWhole = sql.substring(start, end).chars().allMatch(Character::isDigit);
    boolean hasFraction =
        isWhole
            && end + 1 < sql.length()
            && sql.charAt(end) == '.'
            && Character.isDigit(sql.charAt(end + 1));
    if (!hasFraction) return end;
    end++;
    while (end < sql.length() && isNamePart(sql.charAt(end))) end++;
    return end;
  }

  /** Moves past spaces and comments, and returns the start of the next token. */
  private int skipped() {
    int at = scanned;
    while (at < sql.length()) {
      if (Character.isWhitespace(sql.charAt(at))) {
        at++;
      } else if (sql.startsWith("--", at)) {
        at = afterLine(at);
      } else if (sql.startsWith("/*", at) && !sql.startsWith(HINT, at)) {
        int end = afterComment(at);
        if (end < 0) break;
        at = end;
      } else {
        break;
      }
    }
    return at;
  }

  /** A backslash at the end of a line continues the comment. */
  private int afterLine(int start) {
    int at = start;
    while (at < sql.length() && sql.charAt(at) != '\n' && sql.charAt(at) != '\r') {
      at += sql.startsWith("\\\n", at) ? 2 : 1;
    }
    return at;
  }

  /** Returns the end of a comment, which may contain comments, or -1. */
  private int afterComment(int start) {
    int depth = 0;
    for (int at = start; at < sql.length(); at++) {
      if (sql.startsWith("/*", at)) {
        depth++;
        at++;
      } else if (sql.startsWith("*/", at)) {
        depth--;
        at++;
        if (depth == 0) return at + 1;
      }
    }
    return -1;
  }

  /** Returns the end of a quotation, or -1. A doubled quotation mark is a part of the text. */
  private int afterQuote(int start, boolean hasEscapes) {
    char quote = sql.charAt(start);
    for (int at = start + 1; at < sql.length(); at++) {
      char c = sql.charAt(at);
      if (hasEscapes && c == '\\') {
        at++;
      } else if (c == quote) {
        boolean isDoubled = at + 1 < sql.length() && sql.charAt(at + 1) == quote;
        if (!isDoubled) return at + 1;
        at++;
      }
    }
    return -1;
  }

  /** Returns the end of a text between `$tag$`, or of the mark alone. */
  private int afterDollars(int start) {
    int at = start + 1;
    while (at < sql.length() && isNamePart(sql.charAt(at))) at++;
    if (at >= sql.length() || sql.charAt(at) != '$') return start + 1;
    String tag = sql.substring(start, at + 1);
    int end = sql.indexOf(tag, at + 1);
    return end < 0 ? -1 : end + tag.length();
  }
}
