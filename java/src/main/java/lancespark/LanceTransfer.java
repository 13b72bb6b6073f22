package lancespark;

import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A physical node below a function of Python, whose rows end their Arrow batches by row sizes
 * ({@link BatchedRows}), or the node above the function, which makes the function without a limit.
 */
public final class LanceTransfer extends LancePlan {
  private static final long serialVersionUID = 1L;

  private final boolean isAbove;

  /** Spark makes copies with this constructor. */
  public LanceTransfer(SparkPlan child, boolean isAbove) {
    super(child);
    this.isAbove = isAbove;
  }

  @Override
  public RDD<InternalRow> doExecute() {
    StructType schema = LancePushdown.schemaOf(Scala.list(child.output()));
    return isAbove ? new Above(child.execute()) : new Below(child.execute(), schema);
  }

  @Override
  LancePlan withChild(SparkPlan child) {
    return new LanceTransfer(child, isAbove);
  }

  @Override
  public String nodeName() {
    return isAbove ? "Lance Python" : "Lance Batches";
  }

  @Override
  public int productArity() {
    return 2;
  }

  @Override
  public Object productElement(int n) {
    return n == 0 ? child : (Object) isAbove;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof LanceTransfer;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LanceTransfer transfer
        && transfer.isAbove == isAbove
        && transfer.child.equals(child);
  }

  /** Plans functions of Python that read all of their rows: lance_spark/spark_jobs/tasks.py. */
  static final class Strategy extends SparkStrategy {
    private static final long serialVersionUID = 1L;
    private static final String READS_ALL_ROWS = "lance.reads_all_rows";

    @Override
    public Seq<SparkPlan> apply(LogicalPlan plan) {
      if (!(plan instanceof MapInArrow map) || !readsAllRows(map)) return Scala.seqOf();
      SparkPlan rows = new LanceTransfer(planLater(map.child()), false);
      SparkPlan python =
          new MapInArrowExec(
              map.functionExpr(), map.output(), rows, map.isBarrier(), map.profile());
      return Scala.seqOf(new LanceTransfer(python, true));
    }

    private static boolean readsAllRows(MapInArrow map) {
      return Scala.list(map.output()).stream()
          .anyMatch(column -> column.metadata().contains(READS_ALL_ROWS));
    }
  }

  private static final class Below extends RDD<InternalRow> {
    private static final long serialVersionUID = 1L;
    private final StructType schema;

    Below(RDD<InternalRow> rows, StructType schema) {
      super(rows, ROW);
      this.schema = schema;
    }

    @Override
    public Partition[] getPartitions() {
      return firstParent(ROW).partitions();
    }

    @Override
    public Iterator<InternalRow> compute(Partition split, TaskContext task) {
      Iterator<InternalRow> rows =
          BatchedRows.withLimit(() -> this.<InternalRow>firstParent(ROW).iterator(split, task));
      BatchedRows batches =
          new BatchedRows(
              BatchedRows.withSettings(CollectionConverters.asJava(rows)), schema, false);
      batches.check(task);
      return CollectionConverters.asScala(batches);
    }
  }

  private static final class Above extends RDD<InternalRow> {
    private static final long serialVersionUID = 1L;

    Above(RDD<InternalRow> answers) {
      super(answers, ROW);
    }

    @Override
    public Partition[] getPartitions() {
      return firstParent(ROW).partitions();
    }

    @Override
    public Iterator<InternalRow> compute(Partition split, TaskContext task) {
      return BatchedRows.withoutLimit(
          () -> this.<InternalRow>firstParent(ROW).iterator(split, task));
    }
  }
}
