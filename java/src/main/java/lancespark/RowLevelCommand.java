package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.util.WriteDeltaProjections;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import scala.Product;
import scala.collection.immutable.Seq;

/**
 * UPDATE, DELETE or MERGE: a query of the rows that change, what becomes of each, and new values. Python runs it, at one version, and commits:
 * lance_spark/sql/statements.py. Where a concurrent commit came between, it asks for the query at the latest version, and runs that.
 */
public final class RowLevelCommand extends LanceCommand {
  private static final String ACTION = "__row_operation";
  private static final String ADDRESS = "_rowaddr";
  /** What Spark says of a row: its RowDeltaUtils. */
  static final int DELETES = 1;
  static final int UPDATES = 2;
  static final int INSERTS = 3;

  private final LanceTable table;
  private final String operation;
  /** The address of a row, NULL for a new one; what becomes of it; the new values. */
  private final LogicalPlan rows;
  private final List columns;
  /** Of these, the ones that an update leaves: a new value is for new rows alone. */
  private final List kept;
  private final String predicate;

  /** Also what Spark makes copies with. */
  public RowLevelCommand(LanceTable table, String operation, LogicalPlan rows, List columns, List kept, String predicate, List result) {
    super(result);
    this.table = table;
    this.operation = operation;
    this.rows = rows;
    this.columns = columns;
    this.kept = kept;
    this.predicate = predicate;
  }

  /** Returns the statement that Spark's analyzer has written as a delta; null where it is of another table. */
  static RowLevelCommand of(WriteDelta delta) throws Exception {
    Object relation = delta.originalTable();
    LanceTable table = relation instanceof DataSourceV2Relation ? tableOf(((DataSourceV2Relation) relation).table()) : null;
    if (table == null) return null;
    String operation = delta.operation().command().toString().toLowerCase();
    LogicalPlan query = delta.query();
    List output = Reflection.list(query.output());
    WriteDeltaProjections projections = delta.projections();
    List wanted = new ArrayList();
    int addressAt = ((Integer) projections.rowIdProjection().colOrdinals().apply(0)).intValue();
    Attribute address = (Attribute) output.get(addressAt);
    wanted.add(address);
    wanted.add(named(output, ACTION));
    Set used = new HashSet();
    used.add(Integer.valueOf(addressAt));
    used.add(Integer.valueOf(output.indexOf(wanted.get(1))));
    List columns = new ArrayList();
    List kept = new ArrayList();
    LanceMerge merge = query instanceof MergeRows ? new LanceMerge((MergeRows) query, addressAt) : null;
    if (projections.rowProjection().isDefined()) {
      Object row = projections.rowProjection().get();
      StructType schema = (StructType) Reflection.call(row, "schema");
      List ordinals = Reflection.list((scala.collection.Iterable) Reflection.call(row, "colOrdinals"));
      for (int i = 0; i < ordinals.size(); i++) {
        int at = ((Integer) ordinals.get(i)).intValue();
        Attribute value = (Attribute) output.get(at);
        String name = schema.fields()[i].name();
        if (operation.equals("update") && isKept(query, value, name, address)) continue;
        if (table.schema().getFieldIndex(name).isEmpty()) {
          // A column of rows, which a statement may name. Of values, Spark has it among the columns of the table then.
          if (merge == null || merge.changes(at, name)) throw table.refusal(operation, "a column that each row has is not set: " + name);
          continue;
        }
        used.add(Integer.valueOf(at));
        if (merge != null && merge.keeps(at, name)) {
          if (!merge.inserts()) continue;
          kept.add(name);
        }
        columns.add(name);
        wanted.add(as(value, "value_" + columns.size()));
      }
    }
    wanted.set(0, as(address, ADDRESS));
    LogicalPlan rows = new Project(Reflection.seq(wanted), merge == null ? query : merge.pruned(used));
    return new RowLevelCommand(table, operation, rows, columns, kept, operation.equals("delete") ? LancePushdown.wholePredicate(query) : null, new ArrayList());
  }

  /** Returns INSERT INTO .. REPLACE WHERE as a statement; null where the plan is something else. */
  static RowLevelCommand of(OverwriteByExpression overwrite) throws Exception {
    scala.Option write = (scala.Option) Reflection.call(overwrite, "write");
    Object target = Reflection.call(overwrite, "table");
    if (write.isEmpty() || !(write.get() instanceof LanceReplaceWhere) || !(target instanceof DataSourceV2Relation)) return null;
    DataSourceV2Relation relation = ((DataSourceV2Relation) target).withMetadataColumns();
    table(relation).checkStatement("REPLACE WHERE", relation.options());
    List columns = new ArrayList();
    Project made = made(table(relation), overwrite.query(), columns);
    List gone = new ArrayList();
    gone.add(as(named(Reflection.list(relation.output()), ADDRESS), ADDRESS));
    gone.add(as(Literal$.MODULE$.apply(Integer.valueOf(DELETES)), ACTION));
    List given = Reflection.list(overwrite.query().output());
    for (int i = 0; i < given.size(); i++) gone.add(as(Literal$.MODULE$.create(null, ((Attribute) given.get(i)).dataType()), "value_" + (i + 1)));
    List both = new ArrayList();
    both.add(new Project(Reflection.seq(gone), new Filter(overwrite.deleteExpr(), relation)));
    both.add(made);
    LogicalPlan rows = (LogicalPlan) Reflection.create(Union.class, new Object[] {Reflection.seq(both)});
    return new RowLevelCommand(table(relation), "merge", rows, columns, new ArrayList(), null, new ArrayList());
  }

  /** Returns a MERGE that only inserts, of which the analyzer has written the rows, as a statement. */
  static RowLevelCommand inserting(V2WriteCommand merge) throws Exception {
    LanceTable table = table((DataSourceV2Relation) Reflection.call(merge, "table"));
    List columns = new ArrayList();
    return new RowLevelCommand(table, "insert", made(table, merge.query(), columns), columns, new ArrayList(), null, new ArrayList());
  }

  /** Returns the rows of a query, which are all new; adds the names of their columns. */
  private static Project made(LanceTable table, LogicalPlan query, List columns) {
    List made = new ArrayList();
    made.add(as(Literal$.MODULE$.create(null, LongType$.MODULE$), ADDRESS));
    made.add(as(Literal$.MODULE$.apply(Integer.valueOf(INSERTS)), ACTION));
    List given = Reflection.list(query.output());
    for (int i = 0; i < given.size(); i++) {
      columns.add(table.schema().fields()[i].name());
      made.add(as((Attribute) given.get(i), "value_" + columns.size()));
    }
    return new Project(Reflection.seq(made), query);
  }

  /** Returns the statement with queries to which its own refers. */
  RowLevelCommand beside(Seq queries) {
    return new RowLevelCommand(table, operation, new WithCTE(rows, queries), columns, kept, predicate, result);
  }

  /** Returns the statement with the columns of its result. */
  RowLevelCommand counted(List columnsOfResult) {
    return new RowLevelCommand(table, operation, rows, columns, kept, predicate, columnsOfResult);
  }

  private static LanceTable table(DataSourceV2Relation relation) {
    return tableOf(relation.table());
  }

  static Alias as(Expression value, String name) {
    Seq none = Reflection.seq(new ArrayList());
    return new Alias(value, name, NamedExpression$.MODULE$.newExprId(), none, scala.Option.empty(), none);
  }

  /** Spark wraps the table of a statement in one that knows the operation. */
  static LanceTable tableOf(Object table) {
    if (table instanceof LanceTable) return (LanceTable) table;
    if (table == null || !table.getClass().getSimpleName().equals("RowLevelOperationTable")) return null;
    try {
      Object inner = Reflection.call(table, "table");
      return inner instanceof LanceTable ? (LanceTable) inner : null;
    } catch (Exception error) {
      return null;
    }
  }

  private static Attribute named(List output, String name) {
    Iterator each = output.iterator();
    while (each.hasNext()) {
      Attribute a = (Attribute) each.next();
      if (a.name().equals(name)) return a;
    }
    throw new IllegalStateException("the query of a statement has no column " + name);
  }

  /** Whether a new value is that which the row has. */
  private static boolean isKept(LogicalPlan query, Attribute value, String name, Attribute address) {
    Object[] from = origin(query, value);
    Object[] row = origin(query, address);
    return from != null && row != null && from[0] == row[0] && from[1].equals(name);
  }

  /** The scan and the column of it that an attribute comes from unchanged; null where it does not. */
  static Object[] origin(LogicalPlan plan, Attribute wanted) {
    if (plan instanceof DataSourceV2ScanRelation) return new Object[] {plan, wanted.name()};
    Attribute below = wanted;
    if (plan instanceof Project) {
      below = null;
      Iterator each = Reflection.list(((Project) plan).projectList()).iterator();
      while (each.hasNext()) {
        NamedExpression e = (NamedExpression) each.next();
        if (!e.exprId().equals(wanted.exprId())) continue;
        Expression value = e instanceof Alias ? ((Alias) e).child() : (Expression) e;
        below = value instanceof Attribute ? (Attribute) value : null;
      }
      if (below == null) return null;
    }
    Iterator children = Reflection.list(plan.children()).iterator();
    while (children.hasNext()) {
      LogicalPlan child = (LogicalPlan) children.next();
      if (child.outputSet().contains(below)) return origin(child, below);
    }
    return null;
  }

  /** Runs the statement; called by Spark. */
  public Seq run(SparkSession session) {
    Map arguments = new HashMap();
    arguments.put("operation", operation);
    arguments.put("columns", columns);
    arguments.put("kept", kept);
    arguments.put("predicate", predicate == null ? null : PythonGateway.parsed(predicate));
    arguments.put("opened", table.opened);
    // A statement reads the rows that it changes; one that only inserts changes none.
    int own = operation.equals("insert") ? 0 : 1;
    LanceQuery query = new LanceQuery(rows, table);
    arguments.put("reads_others", Boolean.valueOf(query.reads() > own));
    arguments.put("read_columns", query.columns());
    try {
      return AddRowCounts.rows(result, table.catalog.ask("change", table.identifier, arguments, new LanceRows(this, session, table)));
    } catch (PythonGateway.Failure failure) {
      Platform.throwException(PythonGateway.error(operation, failure));
      return null;
    } finally {
      // Also where it failed, which a commit may have survived.
      table.catalog.refreshCaches(session, table.identifier);
    }
  }

  /** Returns the query at a version of the table, and as it is now of others. */
  LogicalPlan at(LanceTable now) {
    return new LanceQuery(rows, table).at(now);
  }

  // What Spark asks of a command

  public Seq innerChildren() {
    List inner = new ArrayList();
    inner.add(rows);
    return Reflection.seq(inner);
  }

  public String nodeName() {
    return "Lance " + operation;
  }

  public String simpleString(int maxFields) {
    String set = operation.equals("delete") ? "" : " of " + String.join(", ", columns);
    return nodeName() + set + " in " + table.name();
  }

  public int productArity() {
    return 7;
  }

  public Object productElement(int n) {
    return new Object[] {table, operation, rows, columns, kept, predicate, result}[n];
  }

  public boolean canEqual(Object other) {
    return other instanceof RowLevelCommand;
  }
}
