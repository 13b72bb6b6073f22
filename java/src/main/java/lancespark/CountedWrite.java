package lancespark;

import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import scala.Function1;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * A statement of the analyzer with the columns of its result. The planner rule replaces both by a
 * {@link RowLevelCommand}. The only child is the query of the statement, because Spark runs a
 * command within a command too early.
 */
public final class CountedWrite extends LanceCommand {
  private final V2WriteCommand statement;
  private final LogicalPlan query;

  /** Spark makes copies with this constructor. */
  public CountedWrite(
      V2WriteCommand statement, LogicalPlan query, List<AttributeReference> result) {
    super(result);
    this.statement = statement;
    this.query = query;
  }

  RowLevelCommand statement() {
    V2WriteCommand whole = statement.withNewQuery(query);
    RowLevelCommand command =
        whole instanceof WriteDelta delta
            ? RowLevelCommand.of(delta)
            : RowLevelCommand.inserting(whole);
    return command.withResult(result);
  }

  /** Runs only in a session without the planner rule. */
  @Override
  public Seq<Row> run(SparkSession session) {
    throw LanceNoWrite.refusal(command());
  }

  private RowLevelOperation.Command command() {
    return statement instanceof WriteDelta delta
        ? delta.operation().command()
        : RowLevelOperation.Command.MERGE;
  }

  @Override
  public Seq<LogicalPlan> children() {
    return Scala.seqOf(query);
  }

  @Override
  public LogicalPlan mapChildren(Function1<LogicalPlan, LogicalPlan> change) {
    LogicalPlan changed = change.apply(query);
    return changed.fastEquals(query) ? this : new CountedWrite(statement, changed, result);
  }

  @Override
  public LogicalPlan withNewChildrenInternal(IndexedSeq<LogicalPlan> children) {
    return new CountedWrite(statement, children.head(), result);
  }

  @Override
  public String nodeName() {
    return "Lance " + AddRowCounts.nameOf(command());
  }

  @Override
  public String simpleString(int maxFields) {
    return nodeName();
  }

  @Override
  Object[] elements() {
    return new Object[] {statement, query, result};
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof CountedWrite write
        && write.statement == statement
        && write.query.equals(query);
  }

  @Override
  public int hashCode() {
    return query.hashCode();
  }
}
