package lancespark;

import java.util.ArrayList;
import java.util.Iterator;
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
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.unsafe.Platform;
import scala.collection.immutable.Seq;

/**
 * Gives UPDATE, DELETE and MERGE a result: how many rows they changed. Spark takes the columns of a command's result from the analyzed plan, so
 * they stand there, until the statement takes them over.
 */
final class AddRowCounts extends Rule {
  /** What Spark makes of a MERGE that only inserts, from 4.3 on. */
  private static final String INSERTS = "InsertOnlyMerge";

  public TreeNode apply(TreeNode plan) {
    AnalysisException refused = null;
    if (plan instanceof DropTable) return LanceDrop.of((DropTable) plan);
    try {
      if (plan instanceof WriteDelta) {
        WriteDelta delta = (WriteDelta) plan;
        Object relation = delta.originalTable();
        if (!(relation instanceof DataSourceV2Relation) || RowLevelCommand.tableOf(((DataSourceV2Relation) relation).table()) == null) return plan;
        boolean merges = delta.operation().command() == RowLevelOperation.Command.MERGE;
        if (isDeterministic(delta, merges)) return new CountedWrite(delta, delta.query(), columns(delta.operation().command().toString().toLowerCase()));
        // Spark refuses the others.
        if (!merges) return plan;
        refused = RowLevelCommand.tableOf(((DataSourceV2Relation) relation).table()).refusal("merge", "the source, a condition or a new value is not"
            + " deterministic (rand(), uuid(), input_file_name()): put such values into the source, and merge from source.localCheckpoint()");
      }
      LanceTable table = inserted(plan);
      if (table != null) {
        V2WriteCommand merge = (V2WriteCommand) plan;
        table.checkStatement("MERGE", ((DataSourceV2Relation) Reflection.call(merge, "table")).options());
        if (((List) table.opened.get("blobs")).isEmpty()) return new CountedWrite(merge, merge.query(), columns("merge"));
        refused = table.refusal("merge", "SQL has no values for blob columns: use merge_insert of the table API");
      }
      if (refused == null) refused = changedView(plan);
      LanceTruncation emptied = refused == null ? emptied(plan, columns("delete")) : null;
      if (emptied != null) return emptied;
    } catch (AnalysisException error) {
      refused = error;
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
    return relation instanceof DataSourceV2Relation ? RowLevelCommand.tableOf(((DataSourceV2Relation) relation).table()) : null;
  }

  /** Whether Spark takes the expressions of a statement. */
  private static boolean isDeterministic(WriteDelta delta, boolean merges) {
    boolean statement = LancePushdown.deterministic(Reflection.list(delta.expressions()));
    return statement && (!merges || LancePushdown.deterministic(Reflection.list(((LogicalPlan) delta.query()).expressions())));
  }

  /** The error of a statement that changes rows of a view over a table of the catalog; null where the plan is something else. */
  private static AnalysisException changedView(TreeNode plan) {
    LogicalPlan target = null;
    if (plan instanceof UpdateTable) target = ((UpdateTable) plan).table();
    if (plan instanceof DeleteFromTable) target = ((DeleteFromTable) plan).table();
    if (plan instanceof MergeIntoTable) target = ((MergeIntoTable) plan).targetTable();
    if (target == null || !(EliminateSubqueryAliases.apply(target) instanceof View)) return null;
    Iterator leaves = Reflection.list(target.collectLeaves()).iterator();
    while (leaves.hasNext()) {
      Object leaf = leaves.next();
      LanceTable table = leaf instanceof DataSourceV2Relation ? RowLevelCommand.tableOf(((DataSourceV2Relation) leaf).table()) : null;
      if (table != null) return table.refusal("change", "the statement names a view over the table: name " + table.name());
    }
    return null;
  }

  /** DELETE of all rows of a table of the catalog, with the columns of its result; null where the plan is something else. */
  static LanceTruncation emptied(TreeNode plan, List result) throws AnalysisException {
    if (!(plan instanceof DeleteFromTable)) return null;
    DeleteFromTable delete = (DeleteFromTable) plan;
    boolean all = delete.condition() instanceof Literal && Boolean.TRUE.equals(((Literal) delete.condition()).value());
    LogicalPlan relation = EliminateSubqueryAliases.apply(delete.table());
    if (!all || !(relation instanceof DataSourceV2Relation)) return null;
    LanceTable table = RowLevelCommand.tableOf(((DataSourceV2Relation) relation).table());
    if (table == null) return null;
    table.checkStatement("DELETE", ((DataSourceV2Relation) relation).options());
    return new LanceTruncation(table, result);
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
