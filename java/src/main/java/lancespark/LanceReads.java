package lancespark;

import java.io.File;
import java.net.URI;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
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
import org.apache.spark.sql.types.StructType;

/** The Lance scans below a plan, including scans in subqueries and behind a cache. */
final class LanceReads {
  /** Distinct `lance.table` metadata of the row addresses and ids in the scans. */
  final Set<String> snapshots = new LinkedHashSet<>();

  /** Rows come from a checkpoint, an RDD or a scan without the planner rule. */
  private boolean opaque;

  private final List<Input> inputs = new ArrayList<>();

  /** A scan, with a flag for row addresses or ids. */
  private record Input(LanceScan scan, boolean addressed) {}

  static LanceReads of(LogicalPlan plan) {
    LanceReads reads = new LanceReads();
    reads.collect(plan);
    return reads;
  }

  /** Returns the only snapshot of all scans, or null. */
  String onlySnapshot() {
    return opaque || snapshots.size() != 1 ? null : snapshots.iterator().next();
  }

  static boolean isRowColumn(String name) {
    return name.equals("_rowaddr") || name.equals("_rowid");
  }

  private void collect(QueryPlan<?> plan) {
    if (plan instanceof DataSourceV2ScanRelation relation) {
      add(relation.scan(), plan);
    } else if (plan instanceof BatchScanExec exec) {
      add(exec.scan(), plan);
    } else if (plan instanceof InMemoryRelation relation) {
      collect(relation.cacheBuilder().cachedPlan());
    } else if (plan instanceof InMemoryTableScanExec exec) {
      collect(exec.relation());
    } else if (plan instanceof AdaptiveSparkPlanExec adaptive) {
      collect(adaptive.inputPlan());
    } else if (plan instanceof QueryStageExec stage) {
      collect(stage.plan());
    } else if (plan instanceof LogicalRDD || plan instanceof RDDScanExec) {
      opaque = true;
    }
    for (QueryPlan<?> child : Scala.<QueryPlan<?>>list(plan.children())) collect(child);
    for (QueryPlan<?> subquery : Scala.<QueryPlan<?>>list(plan.subqueries())) collect(subquery);
  }

  private void add(Scan scan, QueryPlan<?> relation) {
    if (!(scan instanceof LanceScan) && !(scan instanceof PythonScan)) return;
    boolean addressed = false;
    for (Attribute column : Scala.list(relation.output())) {
      if (!isRowColumn(column.name())) continue;
      addressed = true;
      if (column.metadata().contains(LanceSource.TABLE_METADATA)) {
        snapshots.add(column.metadata().getString(LanceSource.TABLE_METADATA));
      }
    }
    if (scan instanceof LanceScan lance) {
      inputs.add(new Input(lance, addressed));
    } else {
      opaque = true;
    }
  }

  /** Returns the columns of the table at a location in the scans, or null if unknown. */
  List<String> inputColumns(String target) {
    if (opaque) return null;
    Set<String> names = new LinkedHashSet<>();
    boolean any = false;
    for (Input input : inputs) {
      LanceScan scan = input.scan();
      if (!input.addressed() && !isSameLocation(scan.path, target)) continue;
      any = true;
      for (String name : ((StructType) StructType.fromJson(scan.spec.text("columns"))).names()) {
        if (!name.startsWith("_row")) names.add(name);
      }
      for (Json call : scan.spec.objects("aggregate")) {
        if (call.text("column") != null) names.add(call.text("column"));
      }
    }
    return any ? new ArrayList<>(names) : null;
  }

  private static boolean isSameLocation(String left, String right) {
    return left != null && right != null && normalized(left).equals(normalized(right));
  }

  private static String normalized(String path) {
    String local = path.startsWith("file:") ? URI.create(path).getPath() : path;
    if (local.contains("://")) return local.replaceAll("/+$", "");
    return new File(local).toPath().toAbsolutePath().normalize().toString();
  }
}
