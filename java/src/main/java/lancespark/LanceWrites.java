package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.Product;

/**
 * Adds the planner's facts to a Lance write: the location, and the source and order of the rows.
 */
final class LanceWrites {
  private static final String ADDRESS = "_rowaddr";

  private LanceWrites() {}

  static LogicalPlan plan(LogicalPlan plan) {
    V2WriteCommand command = (V2WriteCommand) plan;
    Option<?> option = (Option<?>) SparkRelease.call(command, "write");
    if (option.isEmpty()) return plan;
    EvolvedWrite evolved = option.get() instanceof EvolvedWrite wrapper ? wrapper : null;
    Object original = evolved == null ? option.get() : evolved.write;
    if (!(original instanceof PythonWrite write)) return plan;
    if (!LanceSource.NAME.equals(SparkRelease.field(write, "shortName"))) return plan;
    // The optimizer applies its rules several times.
    boolean isPlanned =
        SparkRelease.field(write, "ds") instanceof GatewaySource present
            && present.isPlannedWrite();
    if (isPlanned) return plan;
    LogicalWriteInfo info = (LogicalWriteInfo) SparkRelease.field(write, "info");
    LanceSource.refuseInternal(info.options());

    Map<String, String> options = new HashMap<>(info.options().asCaseSensitiveMap());
    Map<String, String> storedOptions = storedOptions(command.table());
    if (storedOptions != null) addStored(options, storedOptions);
    String path = storedOptions == null ? null : storedOptions.get("path");
    boolean backfill = "backfill".equalsIgnoreCase(info.options().get("mode"));
    LogicalPlan query = command.query();
    LanceReads reads = LanceReads.of(query);
    LogicalPlan ordered = backfill ? byFragment(query) : null;
    String target = path != null ? path : info.options().get("path");

    Json spec =
        new Json()
            .with("path", path)
            .with("pin", evolved == null ? pin(command.table()) : null)
            .with("exclusive", ordered != null)
            .with("input_columns", backfill ? reads.inputColumns(target) : null)
            .with("snapshots", new ArrayList<>(reads.snapshots));

    LogicalWriteInfo fullInfo =
        (LogicalWriteInfo)
            SparkRelease.copy(
                (Product) info,
                Map.of(
                    "options",
                    new CaseInsensitiveStringMap(options),
                    "schema",
                    withSnapshot(info.schema(), reads.onlySnapshot())));
    boolean truncate = (Boolean) SparkRelease.field(write, "isTruncate");
    GatewaySource source = GatewaySource.writing(spec);
    PythonWrite planned = new PythonWrite(source, LanceSource.NAME, fullInfo, truncate);
    LogicalPlan input = ordered != null ? ordered : query;
    Write whole = new LanceWrite(planned, source, query.schema());
    if (evolved != null) whole = evolved.with(whole);
    return SparkRelease.copy(plan, Map.of("write", Option.apply(whole), "query", input));
  }

  /** Returns the version that the catalog has loaded for the statement, or null. */
  private static String pin(NamedRelation target) {
    boolean isLoaded =
        target instanceof DataSourceV2Relation relation && relation.table() instanceof LanceTable;
    return isLoaded ? ((LanceTable) ((DataSourceV2Relation) target).table()).pin() : null;
  }

  private static Map<String, String> storedOptions(NamedRelation target) {
    if (!(target instanceof DataSourceV2Relation relation)) return null;
    if (relation.identifier().isEmpty()) return null;
    if (CatalogSupport.readOptions(relation.table()) != null) return null;
    return LanceSource.catalogOptions(relation.identifier().get());
  }

  private static void addStored(Map<String, String> options, Map<String, String> storedOptions) {
    CaseInsensitiveStringMap presentOptions = new CaseInsensitiveStringMap(options);
    List<String> addedKeys = new ArrayList<>();
    storedOptions.forEach(
        (key, value) -> {
          if (presentOptions.containsKey(key) || key.equals("path")) return;
          options.put(key, value);
          addedKeys.add(key);
        });
    options.put(LanceSource.TABLE_OPTION, String.join(",", addedKeys));
  }

  /**
   * Puts the current version into the metadata of the row addresses. Views that follow the latest
   * version, and catalog tables, have the metadata of their creation.
   */
  private static StructType withSnapshot(StructType schema, String snapshot) {
    if (snapshot == null) return schema;
    StructField[] fields = schema.fields().clone();
    for (int i = 0; i < fields.length; i++) {
      StructField field = fields[i];
      Metadata metadata = field.metadata();
      if (LanceReads.isRowColumn(field.name()) && metadata.contains(LanceSource.TABLE_METADATA)) {
        metadata = LanceSource.withSnapshot(metadata, snapshot);
        fields[i] = new StructField(field.name(), field.dataType(), field.nullable(), metadata);
      }
    }
    return new StructType(fields);
  }

  /**
   * Returns the query with each fragment's rows in a single task, by ascending address. Returns
   * null for a query without addresses.
   */
  static LogicalPlan byFragment(LogicalPlan query) {
    Attribute address = null;
    for (Attribute column : Scala.list(query.output())) {
      if (column.name().equals(ADDRESS)) address = column;
    }
    if (address == null || !(address.dataType() instanceof LongType)) return null;
    LogicalPlan inPlace = wholeFragments(query, address);
    if (inPlace != null) return inPlace;
    Expression fragment = new ShiftRight(address, Literal$.MODULE$.apply((Object) 32));
    LogicalPlan repartitioned =
        SparkRelease.create(
            RepartitionByExpression.class, Scala.seqOf(fragment), query, Option.empty());
    // Adaptive execution may join partitions of the shuffle, but splits none below this sort.
    return LancePushdown.sortedWithinPartitions(repartitioned, address);
  }

  /**
   * Requests whole fragments from the scan. Returns null if a node above the scan moves rows, or if
   * the scan would lose parallelism.
   */
  private static LogicalPlan wholeFragments(LogicalPlan plan, Attribute address) {
    if (plan instanceof DataSourceV2ScanRelation relation) {
      if (!(relation.scan() instanceof LanceScan scan) || scan.splits) return null;
      List<AttributeReference> output = Scala.list(relation.output());
      boolean hasAddress =
          output.stream().anyMatch(a -> Trees.isSame(a, address) && a.name().equals(ADDRESS));
      if (!hasAddress) return null;
      LanceScan whole = LanceSource.again(scan, "whole_fragments", true);
      return LancePushdown.withScan(relation, whole, output);
    }
    Attribute source = address;
    if (plan instanceof Project project) {
      source = sourceOf(project, address);
    } else if (!(plan instanceof Filter
        || plan instanceof ArrowEvalPython
        || plan instanceof BatchEvalPython)) {
      return null;
    }
    if (source == null) return null;
    LogicalPlan child = wholeFragments(Trees.children(plan).get(0), source);
    return child == null ? null : plan.withNewChildren(Scala.seqOf(child));
  }

  /**
   * Returns the column that a projection passes on unchanged as an attribute, possibly under
   * another name. Returns null for a computed attribute.
   */
  static Attribute sourceOf(Project project, Attribute attribute) {
    for (NamedExpression projection : Scala.list(project.projectList())) {
      if (projection.exprId().equals(attribute.exprId())) return sourceOf(projection);
    }
    return null;
  }

  /** Returns the attribute behind a projection, or null for a computed value. */
  static Attribute sourceOf(NamedExpression projection) {
    if (projection instanceof Attribute column) return column;
    return projection instanceof Alias alias && alias.child() instanceof Attribute column
        ? column
        : null;
  }
}
