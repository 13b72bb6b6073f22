package lancespark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.unsafe.Platform;
import scala.collection.immutable.Seq;

/**
 * Gives UPDATE, DELETE and MERGE a result: how many rows they changed. Spark takes the columns of a command's result from the analyzed plan, so
 * they stand there, until the statement takes them over.
 */
final class LanceCounts extends Rule {
  /** What Spark makes of a MERGE that only inserts, from 4.3 on. */
  private static final String INSERTS = "InsertOnlyMerge";

  public TreeNode apply(TreeNode plan) {
    AnalysisException refused = null;
    try {
      if (plan instanceof WriteDelta) {
        WriteDelta delta = (WriteDelta) plan;
        Object relation = delta.originalTable();
        if (!(relation instanceof DataSourceV2Relation) || LanceStatement.tableOf(((DataSourceV2Relation) relation).table()) == null) return plan;
        // Spark is to see, and refuse, a condition that is not deterministic.
        if (!LancePushdown.deterministic(Reflection.list(delta.expressions()))) return plan;
        return new LanceCounted(delta, delta.query(), columns(delta.operation().command().toString().toLowerCase()));
      }
      LanceTable table = inserted(plan);
      if (table != null) {
        V2WriteCommand merge = (V2WriteCommand) plan;
        if (!Boolean.TRUE.equals(table.opened.get("blobs"))) return new LanceCounted(merge, merge.query(), columns("merge"));
        refused = table.refusal("merge", "SQL has no values for blob columns: use merge_insert of the table API");
      }
      LanceTable emptied = emptied(plan);
      if (emptied != null) return new LanceTruncation(emptied, columns("delete"));
    } catch (Exception error) {
      return plan;
    }
    if (refused != null) Platform.throwException(refused);
    return plan;
  }

  /** The table of a MERGE that only inserts; null where the plan is something else. */
  private static LanceTable inserted(TreeNode plan) throws Exception {
    boolean named = plan.getClass().getSimpleName().equals(INSERTS);
    if (!(plan instanceof V2WriteCommand) || !(named || plan instanceof AppendData)) return null;
    LanceTable table = tableOf(Reflection.call(plan, "table"));
    return table == null || named || table == without(((AppendData) plan).query()) ? table : null;
  }

  /**
   * The table whose keys the rows of an append lack; null where the plan is something else. Before 4.3, Spark makes such an append of a MERGE that
   * only inserts: an anti join with the relation that it appends to.
   */
  private static LanceTable without(LogicalPlan query) {
    LogicalPlan below = query;
    while (below instanceof Project || below instanceof MergeRows) below = (LogicalPlan) below.children().head();
    if (!(below instanceof Join) || !((Join) below).joinType().equals(org.apache.spark.sql.catalyst.plans.LeftAnti$.MODULE$)) return null;
    return tableOf(((Join) below).right());
  }

  private static LanceTable tableOf(Object relation) {
    return relation instanceof DataSourceV2Relation ? LanceStatement.tableOf(((DataSourceV2Relation) relation).table()) : null;
  }

  /** The table of which all rows go; null where the plan is something else. */
  private static LanceTable emptied(TreeNode plan) {
    if (!(plan instanceof DeleteFromTable)) return null;
    DeleteFromTable delete = (DeleteFromTable) plan;
    boolean all = delete.condition() instanceof Literal && Boolean.TRUE.equals(((Literal) delete.condition()).value());
    LogicalPlan table = EliminateSubqueryAliases.apply(delete.table());
    return all && table instanceof DataSourceV2Relation ? LanceStatement.tableOf(((DataSourceV2Relation) table).table()) : null;
  }

  private static List columns(String operation) {
    List columns = new ArrayList();
    columns.add(column("num_affected_rows"));
    if (operation.equals("merge")) {
      columns.add(column("num_updated_rows"));
      columns.add(column("num_deleted_rows"));
      columns.add(column("num_inserted_rows"));
    }
    return columns;
  }

  private static AttributeReference column(String name) {
    Seq unqualified = Reflection.seq(new ArrayList());
    return new AttributeReference(name, LongType$.MODULE$, false, Metadata.empty(), NamedExpression$.MODULE$.newExprId(), unqualified);
  }

  /** Returns the rows of a result: none where it has no columns. */
  static Seq rows(List columns, Map answer) {
    List rows = new ArrayList();
    if (columns.isEmpty()) return Reflection.seq(rows);
    Object[] counts = new Object[] {Long.valueOf(0), of(answer, "rows_updated"), of(answer, "rows_deleted"), of(answer, "rows_inserted")};
    long affected = 0;
    for (int i = 1; i < counts.length; i++) affected += ((Long) counts[i]).longValue();
    counts[0] = Long.valueOf(affected);
    Row row = RowFactory.create((Object[]) java.util.Arrays.copyOf(counts, columns.size()));
    rows.add(row);
    return Reflection.seq(rows);
  }

  private static Long of(Map answer, String key) {
    return Long.valueOf(((Number) answer.get(key)).longValue());
  }
}
