package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.command.RunnableCommand;
import scala.Function1;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/** A command of this package, with the columns of its result. */
abstract class LanceCommand extends LogicalPlan implements RunnableCommand {
  /** Attributes; empty for a command without a result. Not a Scala collection: Spark would take them for expressions of the plan. */
  protected final List result;
  private Seq patterns = Reflection.seq(new ArrayList());

  LanceCommand(List result) {
    this.result = result;
  }

  public Seq output() {
    return Reflection.seq(result);
  }

  public scala.collection.immutable.Map metrics() {
    return scala.collection.immutable.Map$.MODULE$.from(scala.jdk.javaapi.CollectionConverters.asScala(new HashMap()));
  }

  public Seq children() {
    return Reflection.seq(new ArrayList());
  }

  public LogicalPlan mapChildren(Function1 f) {
    return this;
  }

  public LogicalPlan withNewChildrenInternal(IndexedSeq children) {
    return this;
  }

  public Seq nodePatterns() {
    return patterns;
  }

  public void org$apache$spark$sql$catalyst$plans$logical$Command$_setter_$nodePatterns_$eq(Seq given) {
    patterns = given;
  }

  public boolean equals(Object other) {
    return this == other;
  }

  public int hashCode() {
    return System.identityHashCode(this);
  }
}
