package lancespark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import scala.Function1;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * A delta of the analyzer's with the columns of its result, until the planner rule takes both into a {@link LanceStatement}. Its child is the
 * query of the delta: Spark runs a command within a command before that.
 */
public final class LanceCounted extends LanceCommand {
  private final WriteDelta delta;
  private final LogicalPlan query;

  /** Also what Spark makes copies with. */
  public LanceCounted(WriteDelta delta, LogicalPlan query, List result) {
    super(result);
    this.delta = delta;
    this.query = query;
  }

  LanceStatement statement() throws Exception {
    return LanceStatement.of((WriteDelta) delta.withNewQuery(query)).counted(result);
  }

  /** What stays in the plan where no rule replaces it. */
  public Seq run(SparkSession session) {
    throw LanceNoWrite.refusal(delta.operation().command());
  }

  public Seq children() {
    List children = new ArrayList();
    children.add(query);
    return Reflection.seq(children);
  }

  public TreeNode mapChildren(Function1 f) {
    LogicalPlan now = (LogicalPlan) f.apply(query);
    return now.fastEquals(query) ? this : new LanceCounted(delta, now, result);
  }

  public TreeNode withNewChildrenInternal(IndexedSeq children) {
    return new LanceCounted(delta, (LogicalPlan) children.head(), result);
  }

  public String nodeName() {
    return "Lance " + delta.operation().command().toString().toLowerCase();
  }

  public String simpleString(int maxFields) {
    return nodeName();
  }

  public int productArity() {
    return 3;
  }

  public Object productElement(int n) {
    return new Object[] {delta, query, result}[n];
  }

  public boolean canEqual(Object other) {
    return other instanceof LanceCounted;
  }

  public boolean equals(Object other) {
    return other instanceof LanceCounted && ((LanceCounted) other).delta == delta && ((LanceCounted) other).query.equals(query);
  }

  public int hashCode() {
    return query.hashCode();
  }
}
