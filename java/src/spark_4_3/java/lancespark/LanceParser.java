package lancespark;

import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.parser.SqlStatementSplitResult;
import org.apache.spark.sql.catalyst.parser.TemporalIdentifier;
import org.apache.spark.sql.classic.SparkSession;

/** The parser of a session, with the methods that Spark calls from 4.3 on. */
final class LanceParser extends AbstractLanceParser {
  LanceParser(SparkSession session, ParserInterface next) {
    super(session, next);
  }

  @Override
  public TemporalIdentifier parseTemporalTableIdentifier(String sql) throws ParseException {
    return next.parseTemporalTableIdentifier(sql);
  }

  @Override
  public SqlStatementSplitResult splitStatements(String sql) {
    return next.splitStatements(sql);
  }
}
