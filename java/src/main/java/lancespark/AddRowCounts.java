package lancespark;

import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.MonotonicallyIncreasingID;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Seq;

/**
 * Gives UPDATE, DELETE and MERGE a result: the numbers of changed rows. Spark takes the columns of
 * a command's result from the analyzed plan, so the analyzed plan needs the columns.
 */
final class AddRowCounts extends Rule<LogicalPlan> {
  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    if (plan instanceof DropTable drop) return LanceDrop.of(drop);
    try {
      return counted(plan);
    } catch (Exception error) {
      if (error instanceof AnalysisException) throw Errors.thrown(error);
      return plan;
    }
  }

  private static LogicalPlan counted(LogicalPlan plan) {
    if (plan instanceof WriteDelta delta) return counted(delta);
    V2WriteCommand merge = insertOnlyMerge(plan, false);
    if (merge != null) return new CountedWrite(merge, merge.query(), columns("merge"));
    AnalysisException refusal = viewRefusal(plan);
    if (refusal == null) refusal = constraintRefusal(plan);
    if (refusal != null) throw Errors.thrown(refusal);
    LogicalPlan truncation =
        plan instanceof DeleteFromTable delete ? truncation(delete, columns("delete")) : null;
    return truncation == null ? plan : truncation;
  }

  private static LogicalPlan counted(WriteDelta delta) {
    if (tableOf(delta.originalTable()) == null) return delta;
    refuseNondeterministicMerge(delta);
    // Spark itself refuses other non-deterministic statements.
    if (!isDeterministic(delta)) return delta;
    String command = nameOf(delta.operation().command());
    return new CountedWrite(delta, delta.query(), columns(command));
  }

  /** The name of a command in lower case. */
  static String nameOf(RowLevelOperation.Command command) {
    return command.toString().toLowerCase(Locale.ROOT);
  }

  /**
   * Returns a MERGE with only inserts into a table of the catalog, or null for other plans.
   *
   * @param isOptimized whether the optimizer may have changed the query of the plan
   */
  static V2WriteCommand insertOnlyMerge(LogicalPlan plan, boolean isOptimized) {
    LanceTable target = insertTarget(plan, isOptimized);
    if (target == null) return null;
    V2WriteCommand merge = (V2WriteCommand) plan;
    target.checkStatement("MERGE", ((DataSourceV2Relation) merge.table()).options());
    if (target.opened.texts("blobs").isEmpty()) return merge;
    throw Errors.thrown(
        target.refusal(
            "merge", "SQL has no values for blob columns. Use merge_insert of the table API."));
  }

  private static LanceTable insertTarget(LogicalPlan plan, boolean isOptimized) {
    if (!(plan instanceof V2WriteCommand write)) return null;
    LanceTable table = tableOf(write.table());
    if (table == null) return null;
    boolean isMerge =
        SparkRelease.KEEPS_INSERT_ONLY_MERGES
            ? plan.getClass().getName().equals(SparkRelease.INSERT_ONLY_MERGE)
            : plan instanceof AppendData && isAntiJoined(write.query(), table, isOptimized);
    return isMerge ? table : null;
  }

  /**
   * Tells whether an anti join excludes the rows of a table. Before 4.3, Spark writes a MERGE that
   * only inserts as an append of an anti join with its target. The optimizer moves such a join
   * below other nodes of the query.
   */
  private static boolean isAntiJoined(LogicalPlan query, LanceTable table, boolean isOptimized) {
    if (query instanceof Join join && join.joinType().equals(LeftAnti$.MODULE$)) {
      if (reads(join.right(), table)) return true;
    }
    boolean isAbove = isOptimized || query instanceof Project || query instanceof MergeRows;
    return isAbove
        && Trees.children(query).stream()
            .anyMatch(child -> isAntiJoined(child, table, isOptimized));
  }

  private static boolean reads(LogicalPlan plan, LanceTable table) {
    return Scala.<LogicalPlan>list(plan.collectLeaves()).stream()
        .anyMatch(leaf -> isLatest(tableOf(leaf), table));
  }

  /** Spark 4.1 loads the tables of a query again before the optimization. */
  private static boolean isLatest(LanceTable source, LanceTable target) {
    return source != null
        && !source.isTravelled()
        && source.id().equals(target.id())
        && Objects.equals(source.branch(), target.branch());
  }

  private static LanceTable tableOf(Object relation) {
    if (relation instanceof DataSourceV2ScanRelation scan) return tableOf(scan.relation());
    return relation instanceof DataSourceV2Relation v2 ? RowLevelCommand.tableOf(v2.table()) : null;
  }

  /** Refuses a MERGE into a table of the catalog whose rows depend on the time of the query. */
  static void refuseNondeterministicMerge(WriteDelta delta) {
    if (!merges(delta) || isDeterministic(delta)) return;
    throw Errors.thrown(
        tableOf(delta.originalTable())
            .refusal(
                "merge",
                "The source, a condition or a new value is not deterministic (rand(), uuid(),"
                    + " input_file_name()). Put such values into the source, and merge from"
                    + " source.localCheckpoint()."));
  }

  private static boolean merges(WriteDelta delta) {
    return delta.operation().command() == RowLevelOperation.Command.MERGE;
  }

  /** The source of a MERGE is a part of the query in all releases of Spark. */
  private static boolean isDeterministic(WriteDelta delta) {
    return Trees.areDeterministic(Scala.list(delta.expressions()))
        && (!merges(delta) || isDeterministic(delta.query()));
  }

  private static boolean isDeterministic(LogicalPlan query) {
    return Scala.list(query.expressions()).stream()
            .allMatch(value -> value.deterministic() || isRowNumber(value))
        && Trees.children(query).stream().allMatch(AddRowCounts::isDeterministic);
  }

  /** Tells whether an expression is the number by which Spark finds rows with several matches. */
  private static boolean isRowNumber(Expression value) {
    return value instanceof Alias alias
        && alias.child() instanceof MonotonicallyIncreasingID
        && alias.name().equals(MergeRows$.MODULE$.ROW_ID());
  }

  /** Returns the error of a change of rows through a view over a table of the catalog. */
  private static AnalysisException viewRefusal(LogicalPlan plan) {
    LogicalPlan target = null;
    if (plan instanceof UpdateTable update) target = update.table();
    if (plan instanceof DeleteFromTable delete) target = delete.table();
    if (plan instanceof MergeIntoTable merge) target = merge.targetTable();
    if (target == null || !(EliminateSubqueryAliases.apply(target) instanceof View)) return null;
    LanceTable table = firstTable(target);
    if (table == null) return null;
    return table.refusal(
        "change", "The statement names a view over the table. Name " + table.name() + ".");
  }

  /**
   * Returns the error of ALTER TABLE .. ADD CONSTRAINT .. CHECK of a table of the catalog. Spark
   * first looks for rows that violate the condition, and has no plan if no row can.
   */
  private static AnalysisException constraintRefusal(LogicalPlan plan) {
    if (!plan.getClass().getSimpleName().equals("AddCheckConstraint")) return null;
    LanceTable table = firstTable(plan);
    if (table == null) return null;
    return table.refusal(
        "ADD CONSTRAINT", "Lance has no constraints. Check the rows before the write.");
  }

  /** Returns the first table of the catalog in a plan, or null. */
  private static LanceTable firstTable(LogicalPlan plan) {
    for (LogicalPlan leaf : Scala.list(plan.collectLeaves())) {
      LanceTable table = tableOf(leaf);
      if (table != null) return table;
    }
    return null;
  }

  /**
   * Returns DELETE of all rows of a table of the catalog as a command. Returns null for other
   * statements.
   */
  static LanceTruncation truncation(DeleteFromTable delete, List<AttributeReference> result) {
    boolean all =
        delete.condition() instanceof Literal literal && Boolean.TRUE.equals(literal.value());
    if (!all) return null;
    LogicalPlan target = EliminateSubqueryAliases.apply(delete.table());
    LanceTable table = tableOf(target);
    if (table == null) return null;
    CaseInsensitiveStringMap options = ((DataSourceV2Relation) target).options();
    table.checkStatement("DELETE", options);
    return new LanceTruncation(table, options.asCaseSensitiveMap(), result);
  }

  private static List<AttributeReference> columns(String operation) {
    Stream<String> names =
        operation.equals("merge")
            ? Stream.of(
                "num_affected_rows", "num_updated_rows", "num_deleted_rows", "num_inserted_rows")
            : Stream.of("num_affected_rows");
    return names.map(name -> Trees.attribute(name, LongType$.MODULE$, false)).toList();
  }

  /** Returns the rows of a result. A result without columns has no rows. */
  static Seq<Row> rows(List<AttributeReference> columns, Json answer) {
    if (columns.isEmpty()) return Scala.seqOf();
    long updated = answer.number("rows_updated");
    long deleted = answer.number("rows_deleted");
    long inserted = answer.number("rows_inserted");
    Object[] counts = {updated + deleted + inserted, updated, deleted, inserted};
    return Scala.seqOf(RowFactory.create(Arrays.copyOf(counts, columns.size())));
  }
}
