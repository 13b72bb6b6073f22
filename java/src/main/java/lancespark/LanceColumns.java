package lancespark;

import java.util.Arrays;
import java.util.List;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.AppendDataExec;
import org.apache.spark.sql.execution.datasources.v2.OverwriteByExpressionExec;
import org.apache.spark.sql.execution.datasources.v2.V2ExistingTableWriteExec;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * A physical node between columns and a write of this package. Its rows are {@link BatchRow}s, so
 * that the writer copies columns in place of values.
 */
public final class LanceColumns extends LancePlan {
  private static final long serialVersionUID = 1L;

  private static final ClassTag<ColumnarBatch> BATCH = ClassTag$.MODULE$.apply(ColumnarBatch.class);

  @SuppressWarnings("serial") // Scala's lists are serializable
  private final Seq<NamedExpression> columns;

  /** Spark makes copies with this constructor. The columns are columns of the child. */
  public LanceColumns(SparkPlan child, Seq<NamedExpression> columns) {
    super(child);
    this.columns = columns;
  }

  @Override
  public RDD<InternalRow> doExecute() {
    return new Rows(child.executeColumnar(), positions(columns, child), schema());
  }

  /** Returns the positions of columns in the output of a node, or null for a computed column. */
  private static int[] positions(Seq<NamedExpression> columns, SparkPlan plan) {
    List<ExprId> ids = Scala.list(plan.output()).stream().map(Attribute::exprId).toList();
    int[] positions =
        Scala.list(columns).stream()
            .map(LanceWrites::sourceOf)
            .mapToInt(source -> source == null ? -1 : ids.indexOf(source.exprId()))
            .toArray();
    return Arrays.stream(positions).allMatch(position -> position >= 0) ? positions : null;
  }

  @Override
  public Seq<Attribute> output() {
    return Scala.seq(Scala.list(columns).stream().map(NamedExpression::toAttribute).toList());
  }

  @Override
  LancePlan withChild(SparkPlan child) {
    return new LanceColumns(child, columns);
  }

  @Override
  public String nodeName() {
    return "Lance Columns";
  }

  @Override
  public int productArity() {
    return 2;
  }

  @Override
  public Object productElement(int n) {
    return n == 0 ? child : columns;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof LanceColumns;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LanceColumns plan
        && plan.columns.equals(columns)
        && plan.child.equals(child);
  }

  /** Hands columns of a scan to a write, in place of Spark's conversion to rows. */
  static final class Transitions extends ColumnarRule {
    @Override
    public Rule<SparkPlan> postColumnarTransitions() {
      return new WriteColumns();
    }
  }

  private static final class WriteColumns extends Rule<SparkPlan> {
    @Override
    public SparkPlan apply(SparkPlan plan) {
      boolean writesRows =
          plan instanceof AppendDataExec || plan instanceof OverwriteByExpressionExec;
      if (!writesRows || !takesColumns(((V2ExistingTableWriteExec) plan).write())) return plan;
      LanceColumns columns = columns(((V2ExistingTableWriteExec) plan).query());
      if (columns == null || !ArrowColumns.canCopy(columns.schema())) return plan;
      return plan.withNewChildren(Scala.seqOf(columns));
    }

    /** Returns the node for a query that only selects columns, or null. */
    @SuppressWarnings("unchecked") // the output has the type of a projection
    private static LanceColumns columns(SparkPlan query) {
      SparkPlan rows = query instanceof ProjectExec project ? project.child() : query;
      if (!(rows instanceof ColumnarToRowExec conversion)) return null;
      Seq<NamedExpression> columns =
          query instanceof ProjectExec project
              ? project.projectList()
              : (Seq<NamedExpression>) (Seq<?>) query.output();
      if (positions(columns, rows) == null) return null;
      return new LanceColumns(conversion.child(), columns);
    }

    private static boolean takesColumns(Write write) {
      return write instanceof LanceWrite
          || (write instanceof EvolvedWrite evolved && takesColumns(evolved.write));
    }
  }

  private static final class Rows extends RDD<InternalRow> {
    private static final long serialVersionUID = 1L;
    private final int[] positions;
    private final StructType schema;

    Rows(RDD<ColumnarBatch> batches, int[] positions, StructType schema) {
      super(batches, ROW);
      this.positions = positions;
      this.schema = schema;
    }

    @Override
    public Partition[] getPartitions() {
      return firstParent(BATCH).partitions();
    }

    @Override
    public Iterator<InternalRow> compute(Partition split, TaskContext task) {
      Iterator<ColumnarBatch> batches =
          this.<ColumnarBatch>firstParent(BATCH).iterator(split, task);
      return new BatchRows(batches, positions, schema);
    }
  }

  /**
   * The rows of batches. Frees the vectors of a batch after its last row, as Spark's own conversion
   * to rows does: a source may hand over vectors outside of the heap without closing them.
   */
  static final class BatchRows extends AbstractIterator<InternalRow> {
    private final Iterator<ColumnarBatch> batches;
    private final int[] positions;
    private final StructType schema;
    private final int rowBytes;
    private ColumnarBatch batch;
    private BatchRow row;

    BatchRows(Iterator<ColumnarBatch> batches, int[] positions, StructType schema) {
      this.batches = batches;
      this.positions = positions;
      this.schema = schema;
      rowBytes = ArrowColumns.rowBytes(schema);
    }

    @Override
    public boolean hasNext() {
      while (row == null || row.isLast()) {
        if (batch != null) batch.closeIfFreeable();
        batch = null;
        if (!batches.hasNext()) return false;
        batch = batches.next();
        row = new BatchRow(batch, positions, schema, rowBytes);
      }
      return true;
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) throw new java.util.NoSuchElementException();
      row.advance();
      return row;
    }
  }
}
