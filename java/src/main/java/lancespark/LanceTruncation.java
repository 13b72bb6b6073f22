package lancespark;

import java.util.List;
import org.apache.spark.sql.SparkSession;
import scala.collection.immutable.Seq;

/** DELETE of all rows, which reads none of them. */
public final class LanceTruncation extends LanceCommand {
  private final LanceTable table;

  /** Also what Spark makes copies with. */
  public LanceTruncation(LanceTable table, List result) {
    super(result);
    this.table = table;
  }

  public Seq run(SparkSession session) {
    try {
      return AddRowCounts.rows(result, table.truncated());
    } finally {
      // Also where it failed, which a commit may have survived.
      table.catalog.refreshCaches(session, table.identifier);
    }
  }

  public String nodeName() {
    return "Lance delete";
  }

  public String simpleString(int maxFields) {
    return nodeName() + " of all rows in " + table.name();
  }

  public int productArity() {
    return 2;
  }

  public Object productElement(int n) {
    return new Object[] {table, result}[n];
  }

  public boolean canEqual(Object other) {
    return other instanceof LanceTruncation;
  }
}
