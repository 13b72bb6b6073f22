package lancespark;

import java.math.BigInteger;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;

/** The rows of a statement. Called by Python: lance_spark/sql/statements.py. */
public final class LanceRows {
  private final RowLevelCommand statement;
  private final SparkSession session;
  private final LanceTable table;
  private long bytes;
  private boolean calls;

  LanceRows(RowLevelCommand statement, SparkSession session, LanceTable table) {
    this.statement = statement;
    this.session = session;
    this.table = table;
  }

  public SparkSession session() {
    return session;
  }

  /**
   * Returns the rows at a version.
   *
   * @param opened the JSON of the version from Python
   * @param byFragment whether all rows of a fragment go to the same task
   */
  public Dataset<Row> at(String opened, boolean byFragment) {
    LanceTable version = SparkRelease.table(table.catalog, table.identifier, Json.parse(opened));
    var classic = (org.apache.spark.sql.classic.SparkSession) session;
    LogicalPlan query = MergeTarget.filtered(statement.at(version));
    Dataset<Row> rows = Dataset$.MODULE$.ofRows(classic, analyzed(query));
    LogicalPlan plan = rows.queryExecution().optimizedPlan();
    calls =
        plan.containsPattern(TreePattern$.MODULE$.PYTHON_UDF())
            || plan.containsPattern(TreePattern$.MODULE$.EVAL_PYTHON_UDF())
            || plan.containsPattern(TreePattern$.MODULE$.SCALA_UDF());
    bytes = calls ? Long.MAX_VALUE : bytesRead(plan);
    return byFragment
        ? Dataset$.MODULE$.ofRows(classic, analyzed(LanceWrites.byFragment(plan)))
        : rows;
  }

  /**
   * Marks a plan with the optimizer's nodes of Python functions as analyzed. The analyzer has
   * analyzed the plan before, and refuses such nodes for functions that are not deterministic.
   */
  private static LogicalPlan analyzed(LogicalPlan plan) {
    if (plan.containsPattern(TreePattern$.MODULE$.EVAL_PYTHON_UDF())) plan.setAnalyzed();
    return plan;
  }

  /** Estimates the bytes behind the rows. Unlimited if functions of the user make rows. */
  public long bytes() {
    return bytes;
  }

  /** Tells whether functions of the user make the rows. */
  public boolean calls() {
    return calls;
  }

  private static long bytesRead(LogicalPlan plan) {
    BigInteger total = BigInteger.ZERO;
    for (LogicalPlan leaf : Scala.list(plan.collectLeaves())) {
      total = total.add(leaf.stats().sizeInBytes().bigInteger());
    }
    return total.min(BigInteger.valueOf(Long.MAX_VALUE)).longValue();
  }
}
