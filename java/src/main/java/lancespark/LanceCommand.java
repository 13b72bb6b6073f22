package lancespark;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.command.RunnableCommand;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.Enumeration;
import scala.Function1;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/** A command of this package with the columns of its result. Spark's planner runs the command. */
abstract class LanceCommand extends LogicalPlan implements RunnableCommand {
  /**
   * Empty for a command without a result. A Java list, because Spark treats attributes in a Scala
   * collection as expressions of the plan.
   */
  protected final List<AttributeReference> result;

  private Seq<Enumeration.Value> patterns = Scala.seqOf();

  LanceCommand(List<AttributeReference> result) {
    this.result = result;
  }

  @Override
  public Seq<Attribute> output() {
    return Scala.seq(result);
  }

  @Override
  public scala.collection.immutable.Map<String, SQLMetric> metrics() {
    return Scala.immutableMap(Map.of());
  }

  @Override
  public Seq<LogicalPlan> children() {
    return Scala.seqOf();
  }

  @Override
  public LogicalPlan mapChildren(Function1<LogicalPlan, LogicalPlan> change) {
    return this;
  }

  @Override
  public LogicalPlan withNewChildrenInternal(IndexedSeq<LogicalPlan> children) {
    return this;
  }

  @Override
  public Seq<Enumeration.Value> nodePatterns() {
    return patterns;
  }

  @Override
  public void org$apache$spark$sql$catalyst$plans$logical$Command$_setter_$nodePatterns_$eq(
      Seq<Enumeration.Value> value) {
    patterns = value;
  }

  /** The arguments of the constructor, for Spark's copies. */
  abstract Object[] elements();

  @Override
  public int productArity() {
    return elements().length;
  }

  @Override
  public Object productElement(int n) {
    return elements()[n];
  }

  @Override
  public boolean canEqual(Object other) {
    return getClass().isInstance(other);
  }

  @Override
  public boolean equals(Object other) {
    return this == other;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }
}
