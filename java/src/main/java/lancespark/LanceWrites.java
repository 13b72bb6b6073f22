package lancespark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.Product;
import scala.Some;

/** Tells a Lance write what only the planner knows: its location, and what its rows were read from and in which order they come. */
final class LanceWrites {
  private static final String ADDRESS = "_rowaddr";
  /** Writes that this class has planned: the optimizer runs its rules several times. */
  private static final Map PLANNED = Collections.synchronizedMap(new WeakHashMap());

  private LanceWrites() {}

  static LogicalPlan plan(LogicalPlan plan) throws Exception {
    V2WriteCommand command = (V2WriteCommand) plan;
    Option planned = (Option) Reflection.call(command, "write");
    if (planned.isEmpty() || !(planned.get() instanceof PythonWrite)) return plan;
    PythonWrite write = (PythonWrite) planned.get();
    if (!LanceSource.NAME.equals(Reflection.field(write, "shortName"))) return plan;
    LogicalWriteInfo info = (LogicalWriteInfo) Reflection.field(write, "info");
    if (PLANNED.containsKey(write)) return plan;
    LanceSource.refuseInternal(info.options());

    Map options = new HashMap(info.options().asCaseSensitiveMap());
    Map stored = storedOptions(command.table());
    addStored(options, stored);
    String path = stored == null ? null : (String) stored.get("path");
    boolean backfill = "backfill".equalsIgnoreCase(info.options().get("mode"));
    LogicalPlan query = command.query();
    LanceReads reads = LanceReads.of(query);
    LogicalPlan ordered = backfill ? byFragment(query) : null;

    Map spec = new LinkedHashMap();
    spec.put("path", path);
    spec.put("exclusive", Boolean.valueOf(ordered != null));
    spec.put("input_columns", backfill ? reads.inputColumns(path != null ? path : info.options().get("path")) : null);
    spec.put("snapshots", new ArrayList(reads.snapshots));
    options.put(LanceSource.WRITE_OPTION, LanceSource.JSON.writeValueAsString(spec));
    LanceSource.prove(options);

    Map changes = new HashMap();
    changes.put("options", new CaseInsensitiveStringMap(options));
    changes.put("schema", withSnapshot(info.schema(), reads));
    LogicalWriteInfo fuller = (LogicalWriteInfo) Reflection.copy((Product) info, changes);
    PythonDataSourceV2 source = (PythonDataSourceV2) Reflection.field(write, "ds");
    boolean truncate = ((Boolean) Reflection.field(write, "isTruncate")).booleanValue();
    changes = new HashMap();
    PythonWrite described = new PythonWrite(source, LanceSource.NAME, fuller, truncate);
    PLANNED.put(described, Boolean.TRUE);
    changes.put("write", new Some(LanceWrite.of(described, command.query().schema(), ordered != null ? ordered : query)));
    if (ordered != null) changes.put("query", ordered);
    return (LogicalPlan) Reflection.copy((Product) command, changes);
  }

  private static Map storedOptions(Object table) throws Exception {
    if (!(table instanceof DataSourceV2Relation) || ((DataSourceV2Relation) table).identifier().isEmpty()) return null;
    if (CatalogSupport.readOptions(((DataSourceV2Relation) table).table()) != null) return null;
    return LanceSource.catalogOptions((Identifier) ((DataSourceV2Relation) table).identifier().get());
  }

  private static void addStored(Map options, Map stored) {
    if (stored == null) return;
    CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(options);
    List added = new ArrayList();
    Iterator entries = stored.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      if (given.containsKey(entry.getKey()) || entry.getKey().equals("path")) continue;
      options.put(entry.getKey(), entry.getValue());
      added.add(entry.getKey());
    }
    options.put(LanceSource.TABLE_OPTION, String.join(",", added));
  }

  /**
   * Puts the version that is read now into the metadata of the row addresses. Views that follow the latest version, and catalog tables,
   * give the query the metadata of the day they were made.
   */
  private static StructType withSnapshot(StructType schema, LanceReads reads) {
    if (reads.opaque || reads.snapshots.size() != 1) return schema;
    StructType fresh = new StructType();
    StructField[] fields = schema.fields();
    for (int i = 0; i < fields.length; i++) {
      boolean row = LanceReads.isRowColumn(fields[i].name()) && fields[i].metadata().contains(LanceSource.TABLE_METADATA);
      Metadata metadata = fields[i].metadata();
      if (row) metadata = LanceSource.withSnapshot(metadata, (String) reads.snapshots.iterator().next());
      fresh = fresh.add(fields[i].name(), fields[i].dataType(), fields[i].nullable(), metadata);
    }
    return fresh;
  }

  /** Returns the query with each fragment's rows in one task, by ascending address; null where it has no addresses. */
  static LogicalPlan byFragment(LogicalPlan query) throws Exception {
    Attribute address = null;
    Iterator output = Reflection.list(query.output()).iterator();
    while (output.hasNext()) {
      Attribute a = (Attribute) output.next();
      if (a.name().equals(ADDRESS)) address = a;
    }
    if (address == null || !(address.dataType() instanceof LongType)) return null;
    LogicalPlan inPlace = wholeFragments(query, address);
    if (inPlace != null) return inPlace;
    List fragment = new ArrayList();
    fragment.add(new ShiftRight(address, Literal$.MODULE$.apply(Integer.valueOf(32))));
    Object[] shuffled = {Reflection.seq(fragment), query, scala.None$.MODULE$};
    LogicalPlan repartitioned = (LogicalPlan) Reflection.create(RepartitionByExpression.class, shuffled);
    List order = new ArrayList();
    order.add(new SortOrder(address, Ascending$.MODULE$, NullsFirst$.MODULE$, Reflection.seq(new ArrayList())));
    // A sort within partitions: adaptive execution may join whole partitions of the shuffle, but splits none below an explicit one.
    Object[] sorted = {Reflection.seq(order), Boolean.FALSE, repartitioned};
    return (LogicalPlan) Reflection.create(Sort.class, sorted);
  }

  /** Asks the scan for whole fragments where nothing above it moves rows; null where that is not so, or would lose parallelism. */
  private static LogicalPlan wholeFragments(LogicalPlan plan, Attribute address) throws Exception {
    if (plan instanceof DataSourceV2ScanRelation) {
      DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) plan;
      if (!(relation.scan() instanceof LanceScan) || ((LanceScan) relation.scan()).splits) return null;
      Iterator output = Reflection.list(relation.output()).iterator();
      while (output.hasNext()) {
        Attribute a = (Attribute) output.next();
        if (a.exprId().equals(address.exprId()) && a.name().equals(ADDRESS)) {
          LanceScan scan = LanceSource.again((LanceScan) relation.scan(), "whole_fragments", Boolean.TRUE);
          return LancePushdown.withScan(relation, scan, Reflection.list(relation.output()));
        }
      }
      return null;
    }
    Attribute below = address;
    if (plan instanceof Project) {
      below = source(Reflection.list(((Project) plan).projectList()), address);
    } else if (!(plan instanceof Filter || plan instanceof ArrowEvalPython || plan instanceof BatchEvalPython)) {
      return null;
    }
    if (below == null) return null;
    List children = Reflection.list(plan.children());
    LogicalPlan child = wholeFragments((LogicalPlan) children.get(0), below);
    if (child == null) return null;
    List replaced = new ArrayList();
    replaced.add(child);
    return (LogicalPlan) plan.withNewChildren(Reflection.seq(replaced));
  }

  /** The column that a projection gives out unchanged, under whatever name, as this attribute. */
  private static Attribute source(List projections, Attribute wanted) {
    Iterator each = projections.iterator();
    while (each.hasNext()) {
      NamedExpression e = (NamedExpression) each.next();
      if (!e.exprId().equals(wanted.exprId())) continue;
      if (e instanceof Attribute) return (Attribute) e;
      Expression child = e instanceof Alias ? ((Alias) e).child() : null;
      return child instanceof Attribute ? (Attribute) child : null;
    }
    return null;
  }
}
