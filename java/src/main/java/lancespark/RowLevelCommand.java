package lancespark;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.ProjectingInternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.util.WriteDeltaProjections;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.LongType$;
import scala.collection.immutable.Seq;

/**
 * UPDATE, DELETE or MERGE: a query of the changed rows with an action and new values for each row.
 * Python runs the query at a single version and commits: lance_spark/sql/statements.py. After a
 * concurrent commit, Python runs the query again at the latest version.
 */
public final class RowLevelCommand extends LanceCommand {
  private static final String ACTION = "__row_operation";
  private static final String ADDRESS = "_rowaddr";

  /** Actions of Spark's RowDeltaUtils. */
  static final int DELETES = 1;

  static final int UPDATES = 2;
  static final int INSERTS = 3;

  private final LanceTable table;
  private final String operation;

  /** Columns: the address of a row, NULL for a new row; the action; the new values. */
  private final LogicalPlan rows;

  private final List<String> columns;

  /** Subset of the columns with new values only for new rows. */
  private final List<String> insertedOnly;

  private final Json predicate;

  /** Options of the statement. */
  private final Map<String, String> options;

  private ChangeMetrics metrics;

  /** Spark makes copies with this constructor. */
  public RowLevelCommand(
      LanceTable table,
      String operation,
      LogicalPlan rows,
      List<String> columns,
      List<String> insertedOnly,
      Json predicate,
      Map<String, String> options,
      List<AttributeReference> result) {
    super(result);
    this.table = table;
    this.operation = operation;
    this.rows = rows;
    this.columns = columns;
    this.insertedOnly = insertedOnly;
    this.predicate = predicate;
    this.options = options;
  }

  /** Converts a delta of Spark's analyzer. Returns null for tables of other catalogs. */
  static RowLevelCommand of(WriteDelta delta) {
    if (!(delta.originalTable() instanceof DataSourceV2Relation target)) return null;
    LanceTable table = tableOf(target.table());
    if (table == null) return null;
    String operation = AddRowCounts.nameOf(delta.operation().command());
    LogicalPlan query = delta.query();
    List<Attribute> output = Scala.list(query.output());
    WriteDeltaProjections projections = delta.projections();
    int addressPosition = ordinals(projections.rowIdProjection()).get(0);
    Attribute address = output.get(addressPosition);
    Attribute action = column(output, ACTION);
    List<Expression> projectList = new ArrayList<>(List.of(Trees.alias(address, ADDRESS), action));
    Set<Integer> usedPositions = new HashSet<>(List.of(addressPosition, output.indexOf(action)));
    List<String> columns = new ArrayList<>();
    List<String> insertedOnly = new ArrayList<>();
    LanceMerge merge =
        query instanceof MergeRows mergeRows ? new LanceMerge(mergeRows, addressPosition) : null;
    ColumnOrigins origins = operation.equals("update") ? ColumnOrigins.of(query) : null;
    if (projections.rowProjection().isDefined()) {
      ProjectingInternalRow row = projections.rowProjection().get();
      List<Integer> ordinals = ordinals(row);
      String[] names = row.schema().names();
      for (int i = 0; i < ordinals.size(); i++) {
        int position = ordinals.get(i);
        Attribute value = output.get(position);
        String name = names[i];
        if (origins != null && origins.isCopy(value, name, address)) continue;
        if (table.schema().getFieldIndex(name).isEmpty()) {
          // A row column in a statement. Spark lists the column among the columns of the values.
          if (merge == null || merge.changes(position, name)) {
            throw Errors.thrown(
                table.refusal(
                    operation, "No statement sets the row column " + name + ". Leave it out."));
          }
          continue;
        }
        usedPositions.add(position);
        if (merge != null && merge.skips(position, name)) {
          if (!merge.inserts()) continue;
          insertedOnly.add(name);
        }
        columns.add(name);
        projectList.add(Trees.alias(value, "value_" + columns.size()));
      }
    }
    LogicalPlan input = merge == null ? query : merge.pruned(usedPositions);
    LogicalPlan rows = new Project(LancePushdown.namedSeq(projectList), input);
    Json predicate = operation.equals("delete") ? LancePushdown.wholePredicate(query) : null;
    Map<String, String> options = target.options().asCaseSensitiveMap();
    return new RowLevelCommand(
        table, operation, rows, columns, insertedOnly, predicate, options, List.of());
  }

  private static List<Integer> ordinals(ProjectingInternalRow row) {
    return Scala.list(row.colOrdinals()).stream().map(Integer.class::cast).toList();
  }

  /** Converts INSERT INTO .. REPLACE WHERE. Returns null for other plans. */
  static RowLevelCommand of(OverwriteByExpression overwrite) {
    if (!(Scala.orNull(overwrite.write()) instanceof LanceReplaceWhere)) return null;
    if (!(overwrite.table() instanceof DataSourceV2Relation target)) return null;
    DataSourceV2Relation relation = target.withMetadataColumns();
    LanceTable table = tableOf(relation.table());
    table.checkStatement("REPLACE WHERE", relation.options());
    List<String> columns = new ArrayList<>();
    Project insertions = insertions(table, overwrite.query(), columns);
    List<Expression> deletedValues = new ArrayList<>();
    deletedValues.add(Trees.alias(column(Scala.list(relation.output()), ADDRESS), ADDRESS));
    deletedValues.add(Trees.alias(Literal$.MODULE$.apply((Object) DELETES), ACTION));
    for (Attribute value : Scala.list(overwrite.query().output())) {
      Literal none = Literal$.MODULE$.create((Object) null, value.dataType());
      deletedValues.add(Trees.alias(none, "value_" + (deletedValues.size() - 1)));
    }
    Project deletions =
        new Project(
            LancePushdown.namedSeq(deletedValues), new Filter(overwrite.deleteExpr(), relation));
    LogicalPlan rows = SparkRelease.create(Union.class, Scala.seqOf(deletions, insertions));
    Map<String, String> options = relation.options().asCaseSensitiveMap();
    return new RowLevelCommand(table, "merge", rows, columns, List.of(), null, options, List.of());
  }

  /** Converts a MERGE with only inserts. The analyzer has written its rows. */
  static RowLevelCommand inserting(V2WriteCommand merge) {
    DataSourceV2Relation target = (DataSourceV2Relation) merge.table();
    LanceTable table = tableOf(target.table());
    List<String> columns = new ArrayList<>();
    Project rows = insertions(table, merge.query(), columns);
    Map<String, String> options = target.options().asCaseSensitiveMap();
    return new RowLevelCommand(table, "insert", rows, columns, List.of(), null, options, List.of());
  }

  /** Returns the rows of a query as new rows, and adds the names of their columns to a list. */
  private static Project insertions(LanceTable table, LogicalPlan query, List<String> columns) {
    List<Expression> values = new ArrayList<>();
    values.add(Trees.alias(Literal$.MODULE$.create((Object) null, LongType$.MODULE$), ADDRESS));
    values.add(Trees.alias(Literal$.MODULE$.apply((Object) INSERTS), ACTION));
    for (Attribute value : Scala.list(query.output())) {
      columns.add(table.schema().fields()[columns.size()].name());
      values.add(Trees.alias(value, "value_" + columns.size()));
    }
    return new Project(LancePushdown.namedSeq(values), query);
  }

  /** Returns the statement with the common subqueries of its query. */
  RowLevelCommand withQueries(Seq<CTERelationDef> queries) {
    LogicalPlan whole = new WithCTE(rows, queries);
    return new RowLevelCommand(
        table, operation, whole, columns, insertedOnly, predicate, options, result);
  }

  /** Returns the statement with the columns of its result. */
  RowLevelCommand withResult(List<AttributeReference> columnsOfResult) {
    return new RowLevelCommand(
        table, operation, rows, columns, insertedOnly, predicate, options, columnsOfResult);
  }

  /** Returns a table of the catalog, also from Spark's wrapper for a row-level operation. */
  static LanceTable tableOf(Object table) {
    if (table instanceof LanceTable ours) return ours;
    if (table == null || !table.getClass().getSimpleName().equals("RowLevelOperationTable")) {
      return null;
    }
    return SparkRelease.call(table, "table") instanceof LanceTable ours ? ours : null;
  }

  private static Attribute column(List<? extends Attribute> output, String name) {
    for (Attribute column : output) {
      if (column.name().equals(name)) return column;
    }
    throw new IllegalStateException("the query of a statement has no column " + name);
  }

  /** Spark asks the command of the executed plan for the metrics, and runs the same command. */
  private ChangeMetrics changeMetrics() {
    if (metrics == null) metrics = new ChangeMetrics();
    return metrics;
  }

  @Override
  public scala.collection.immutable.Map<String, SQLMetric> metrics() {
    return changeMetrics().byField();
  }

  /** Runs the statement. Called by Spark. */
  @Override
  public Seq<Row> run(SparkSession session) {
    LanceQuery query = new LanceQuery(rows, table);
    // A statement scans its target once, except a statement with only inserts.
    int ownScans = operation.equals("insert") ? 0 : 1;
    Json arguments =
        new Json()
            .with("operation", operation)
            .with("columns", columns)
            .with("kept", insertedOnly)
            .with("predicate", predicate)
            .with("options", options)
            .with("opened", table.opened)
            .with("reads_others", query.countScans() > ownScans)
            .with("read_columns", query.columns());
    LanceRows input = new LanceRows(this, session, table);
    boolean succeeded = false;
    try {
      Json answer = table.catalog.ask("change", table.identifier, arguments, input);
      succeeded = true;
      changeMetrics().report(answer);
      return AddRowCounts.rows(result, answer);
    } catch (PythonGateway.Failure failure) {
      throw Errors.thrown(Errors.ofCommand(operation, failure));
    } finally {
      if (!succeeded) table.dropAddedColumns();
      // A commit may survive a failure.
      table.catalog.refreshCaches(session, table.identifier);
    }
  }

  /** Returns the query at another version of its target. Other tables keep their versions. */
  LogicalPlan at(LanceTable version) {
    return new LanceQuery(rows, table).at(version);
  }

  /** Raw, because the two superclasses declare types that no generic type satisfies. */
  @Override
  @SuppressWarnings({"rawtypes", "unchecked"})
  public Seq innerChildren() {
    return Scala.seqOf(rows);
  }

  @Override
  public String nodeName() {
    return "Lance " + operation;
  }

  @Override
  public String simpleString(int maxFields) {
    String set = operation.equals("delete") ? "" : " of " + String.join(", ", columns);
    return nodeName() + set + " in " + table.name();
  }

  @Override
  Object[] elements() {
    return new Object[] {table, operation, rows, columns, insertedOnly, predicate, options, result};
  }
}
