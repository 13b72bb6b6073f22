package lancespark;

import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.classic.SparkSession;

/** The parser of a session, before Spark 4.3. */
final class LanceParser extends AbstractLanceParser {
  LanceParser(SparkSession session, ParserInterface next) {
    super(session, next);
  }
}
