package lancespark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import scala.Function1;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/** A physical node with the columns, the partitions and the order of its only child. */
abstract class LancePlan extends SparkPlan {
  private static final long serialVersionUID = 1L;

  static final ClassTag<InternalRow> ROW = ClassTag$.MODULE$.apply(InternalRow.class);

  final SparkPlan child;

  @SuppressWarnings("serial") // Scala's lists are serializable
  private final Seq<SparkPlan> children;

  LancePlan(SparkPlan child) {
    this.child = child;
    this.children = Scala.seqOf(child);
  }

  /** Returns this node above another child. */
  abstract LancePlan withChild(SparkPlan child);

  @Override
  public Seq<Attribute> output() {
    return child.output();
  }

  @Override
  public Partitioning outputPartitioning() {
    return child.outputPartitioning();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return child.outputOrdering();
  }

  @Override
  public Seq<SparkPlan> children() {
    return children;
  }

  @Override
  public SparkPlan mapChildren(Function1<SparkPlan, SparkPlan> change) {
    SparkPlan changed = change.apply(child);
    if (changed.fastEquals(child)) return this;
    LancePlan copy = withChild(changed);
    copy.copyTagsFrom(this); // adaptive execution finds nodes by their tags
    return copy;
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return withChild(children.head());
  }

  @Override
  public int hashCode() {
    return child.hashCode();
  }
}
