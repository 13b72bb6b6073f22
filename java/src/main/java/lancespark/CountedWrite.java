package lancespark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import scala.Function1;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * A statement as the analyzer writes it, with the columns of its result, until the planner rule takes both into a {@link RowLevelCommand}. Its
 * child is the query of the statement: Spark runs a command within a command before that.
 */
public final class CountedWrite extends LanceCommand {
  private final V2WriteCommand written;
  private final LogicalPlan query;

  /** Also what Spark makes copies with. */
  public CountedWrite(V2WriteCommand written, LogicalPlan query, List result) {
    super(result);
    this.written = written;
    this.query = query;
  }

  RowLevelCommand statement() throws Exception {
    V2WriteCommand whole = written.withNewQuery(query);
    RowLevelCommand statement = whole instanceof WriteDelta ? RowLevelCommand.of((WriteDelta) whole) : RowLevelCommand.inserting(whole);
    return statement.counted(result);
  }

  /** What stays in the plan where no rule replaces it. */
  public Seq run(SparkSession session) {
    throw LanceNoWrite.refusal(command());
  }

  private RowLevelOperation.Command command() {
    return written instanceof WriteDelta ? ((WriteDelta) written).operation().command() : RowLevelOperation.Command.MERGE;
  }

  public Seq children() {
    List children = new ArrayList();
    children.add(query);
    return Reflection.seq(children);
  }

  public LogicalPlan mapChildren(Function1 f) {
    LogicalPlan now = (LogicalPlan) f.apply(query);
    return now.fastEquals(query) ? this : new CountedWrite(written, now, result);
  }

  public LogicalPlan withNewChildrenInternal(IndexedSeq children) {
    return new CountedWrite(written, (LogicalPlan) children.head(), result);
  }

  public String nodeName() {
    return "Lance " + command().toString().toLowerCase();
  }

  public String simpleString(int maxFields) {
    return nodeName();
  }

  public int productArity() {
    return 3;
  }

  public Object productElement(int n) {
    return new Object[] {written, query, result}[n];
  }

  public boolean canEqual(Object other) {
    return other instanceof CountedWrite;
  }

  public boolean equals(Object other) {
    return other instanceof CountedWrite && ((CountedWrite) other).written == written && ((CountedWrite) other).query.equals(query);
  }

  public int hashCode() {
    return query.hashCode();
  }
}
