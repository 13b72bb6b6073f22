package lancespark;

import java.math.BigInteger;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;

/** The rows of a statement, for Python. */
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

  /** Returns the rows at a version, which Python has opened; all rows of a fragment in one task where that is asked. */
  public Dataset at(String opened, boolean byFragment) throws Exception {
    LanceTable now = SparkRelease.table(table.catalog, table.identifier, (Map) PythonGateway.parsed(opened));
    org.apache.spark.sql.classic.SparkSession classic = (org.apache.spark.sql.classic.SparkSession) session;
    Dataset rows = Dataset$.MODULE$.ofRows(classic, analyzed(statement.at(now)));
    LogicalPlan plan = rows.queryExecution().optimizedPlan();
    calls = plan.containsPattern(TreePattern$.MODULE$.PYTHON_UDF()) || plan.containsPattern(TreePattern$.MODULE$.EVAL_PYTHON_UDF())
        || plan.containsPattern(TreePattern$.MODULE$.SCALA_UDF());
    bytes = calls ? Long.MAX_VALUE : bytesRead(plan);
    return byFragment ? Dataset$.MODULE$.ofRows(classic, analyzed(LanceWrites.byFragment(plan))) : rows;
  }

  /** The analyzer refuses the optimizer's nodes of Python functions where a function is not deterministic: it has analyzed the plan before. */
  private static LogicalPlan analyzed(LogicalPlan plan) {
    if (plan.containsPattern(TreePattern$.MODULE$.EVAL_PYTHON_UDF())) plan.setAnalyzed();
    return plan;
  }

  /** Bytes that the rows are made of, as far as Spark knows; more than there can be where functions of the user make them. */
  public long bytes() {
    return bytes;
  }

  /** Whether functions of the user make the rows. */
  public boolean calls() {
    return calls;
  }

  private static long bytesRead(LogicalPlan plan) {
    Iterator leaves = Reflection.list(plan.collectLeaves()).iterator();
    BigInteger read = BigInteger.ZERO;
    while (leaves.hasNext()) read = read.add(((LogicalPlan) leaves.next()).stats().sizeInBytes().bigInteger());
    return read.min(BigInteger.valueOf(Long.MAX_VALUE)).longValue();
  }
}
