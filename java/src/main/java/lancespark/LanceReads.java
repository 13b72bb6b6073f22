package lancespark;

import java.io.File;
import java.net.URI;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Which Lance scans feed a plan, those in subqueries and behind a cache included. */
final class LanceReads {
  /** Distinct `lance.table` metadata of the row addresses and ids that are read. */
  final Set snapshots = new LinkedHashSet();
  /** Whether rows come from where a scan cannot be seen: a checkpoint, an RDD, a scan that this rule did not plan. */
  boolean opaque;

  private final List scans = new ArrayList();
  private final List addressed = new ArrayList();

  static LanceReads of(LogicalPlan plan) {
    LanceReads reads = new LanceReads();
    reads.collect(plan);
    return reads;
  }

  static boolean isRowColumn(String name) {
    return name.equals("_rowaddr") || name.equals("_rowid");
  }

  private void collect(QueryPlan plan) {
    if (plan instanceof DataSourceV2ScanRelation) {
      scan(((DataSourceV2ScanRelation) plan).scan(), Reflection.list(plan.output()));
    } else if (plan instanceof BatchScanExec) {
      scan(((BatchScanExec) plan).scan(), Reflection.list(plan.output()));
    } else if (plan instanceof InMemoryRelation) {
      collect(((InMemoryRelation) plan).cacheBuilder().cachedPlan());
    } else if (plan instanceof InMemoryTableScanExec) {
      collect(((InMemoryTableScanExec) plan).relation());
    } else if (plan instanceof AdaptiveSparkPlanExec) {
      collect(((AdaptiveSparkPlanExec) plan).inputPlan());
    } else if (plan instanceof QueryStageExec) {
      collect(((QueryStageExec) plan).plan());
    } else if (plan instanceof LogicalRDD || plan instanceof RDDScanExec) {
      opaque = true;
    }
    Iterator children = Reflection.list(plan.children()).iterator();
    while (children.hasNext()) collect((QueryPlan) children.next());
    Iterator subqueries = Reflection.list(plan.subqueries()).iterator();
    while (subqueries.hasNext()) collect((QueryPlan) subqueries.next());
  }

  private void scan(Scan scan, List output) {
    boolean ours = scan instanceof LanceScan;
    if (!ours && !(scan instanceof PythonScan)) return;
    opaque |= !ours;
    boolean rows = false;
    Iterator each = output.iterator();
    while (each.hasNext()) {
      Attribute a = (Attribute) each.next();
      if (!isRowColumn(a.name())) continue;
      rows = true;
      if (a.metadata().contains(LanceSource.TABLE_METADATA)) snapshots.add(a.metadata().getString(LanceSource.TABLE_METADATA));
    }
    if (ours) {
      scans.add(scan);
      addressed.add(Boolean.valueOf(rows));
    }
  }

  /** Columns of the table at a location that this plan reads; null where they are not known. */
  List inputColumns(String target) {
    if (opaque) return null;
    Set names = new LinkedHashSet();
    boolean any = false;
    for (int i = 0; i < scans.size(); i++) {
      LanceScan scan = (LanceScan) scans.get(i);
      if (!((Boolean) addressed.get(i)).booleanValue() && !samePlace(scan.path, target)) continue;
      any = true;
      StructField[] fields = ((StructType) StructType.fromJson((String) scan.spec.get("columns"))).fields();
      for (int f = 0; f < fields.length; f++) {
        if (!fields[f].name().startsWith("_row")) names.add(fields[f].name());
      }
      List calls = (List) scan.spec.get("aggregate");
      for (int c = 0; calls != null && c < calls.size(); c++) {
        Object column = ((Map) calls.get(c)).get("column");
        if (column != null) names.add(column);
      }
    }
    return any ? new ArrayList(names) : null;
  }

  private static boolean samePlace(String left, String right) {
    return left != null && right != null && place(left).equals(place(right));
  }

  private static String place(String path) {
    String local = path.startsWith("file:") ? URI.create(path).getPath() : path;
    if (local.contains("://")) return local.replaceAll("/+$", "");
    return new File(local).toPath().toAbsolutePath().normalize().toString();
  }
}
