package lancespark;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import scala.collection.immutable.Seq;

/** DELETE of all rows, without a read. */
public final class LanceTruncation extends LanceCommand {
  private final LanceTable table;

  /** Options of the statement. */
  private final Map<String, String> options;

  /** Spark makes copies with this constructor. */
  public LanceTruncation(
      LanceTable table, Map<String, String> options, List<AttributeReference> result) {
    super(result);
    this.table = table;
    this.options = options;
  }

  @Override
  public Seq<Row> run(SparkSession session) {
    try {
      return AddRowCounts.rows(result, table.truncate(options));
    } finally {
      // A commit may survive a failure.
      table.catalog.refreshCaches(session, table.identifier);
    }
  }

  @Override
  public String nodeName() {
    return "Lance delete";
  }

  @Override
  public String simpleString(int maxFields) {
    return nodeName() + " of all rows in " + table.name();
  }

  @Override
  Object[] elements() {
    return new Object[] {table, options, result};
  }
}
