package lancespark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.InternalRow$;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.CreateTempViewUsing;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Product;
import scala.Some;
import scala.runtime.AbstractFunction1;

/**
 * Gives Lance scans the columns, the predicate and the limit that Spark's optimizer found, and answers ungrouped counts, minima and
 * maxima in the scan. Spark's own filter and final aggregate stay in the plan, so that this only saves work.
 */
public class LancePushdown extends Rule {
  /** Most rows that are held back so that a scan is read to its end. */
  private static final int MAX_DRAINED_ROWS = 10000;
  /** Whether the session is one of the driver's program. */
  boolean own;
  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.pushdown");

  /** Gives a session the rule, if it has none, and returns its rule. */
  static LancePushdown enable(org.apache.spark.sql.classic.SparkSession session) throws Exception {
    new LanceDistance().register(session);
    LancePushdown present = of(session);
    if (present != null) return present;
    LancePushdown rule = new LancePushdown();
    List rules = Reflection.list(session.experimental().extraOptimizations());
    rules.add(rule);
    session.experimental().extraOptimizations_$eq(Reflection.seq(rules));
    return rule;
  }

  /** The rule of a session, or null. */
  static LancePushdown of(org.apache.spark.sql.classic.SparkSession session) {
    List rules = Reflection.list(session.experimental().extraOptimizations());
    for (int i = 0; i < rules.size(); i++) {
      if (rules.get(i) instanceof LancePushdown) return (LancePushdown) rules.get(i);
    }
    return null;
  }

  public TreeNode apply(TreeNode plan) {
    AnalysisException refused = null;
    try {
      LogicalPlan statement = CatalogSupport.statement((LogicalPlan) plan);
      if (statement != null) return statement;
      refused = LanceCommands.refusal((LogicalPlan) plan);
      // Spark optimizes each subquery by itself first; they come again with the query, and may be merged then.
      if (plan instanceof Subquery) return plan;
      if (refused == null) return rewrite(LanceMerging.merged((LogicalPlan) plan, conf()), null);
    } catch (Throwable error) {
      Throwable cause = error;
      while (cause instanceof java.lang.reflect.InvocationTargetException || cause instanceof RewriteFailure) cause = cause.getCause();
      // Errors of this package say what the user has to change; anything else is our own trouble, and the plan is right without us.
      String message = String.valueOf(cause.getMessage());
      boolean typed = cause instanceof AnalysisException && message.contains("lance_spark.errors.") && !message.contains("option '" + LanceSource.SCAN_OPTION);
      if (typed || cause instanceof VirtualMachineError || cause instanceof InterruptedException) Platform.throwException(cause);
      LOG.warn("lance pushdown failed; the query runs without it", cause);
      return plan;
    }
    Platform.throwException(refused);
    return plan;
  }

  /** Carries a checked exception out of a Scala function. */
  static final class RewriteFailure extends RuntimeException {
    private static final long serialVersionUID = 1L;

    RewriteFailure(Throwable cause) {
      super(cause);
    }
  }

  private LogicalPlan rewrite(LogicalPlan plan, Integer limit) throws Exception {
    if (plan instanceof CreateTempViewUsing) return marked((CreateTempViewUsing) plan);
    if (plan instanceof RefreshTable) LanceCommands.refresh((RefreshTable) plan);
    // Spark wants to find the table there, and not rows of which it is known that there are none.
    if (plan instanceof DeleteFromTable) return plan;
    if (plan instanceof Aggregate) {
      LogicalPlan answered = aggregate((Aggregate) plan);
      if (answered != null) return subqueries(answered);
    }
    LogicalPlan planned = firstRows(plan);
    if (planned == null) planned = plan instanceof Aggregate ? overElements((Aggregate) plan) : overScan(plan, limit, null, null);
    if (planned == null) {
      Integer below = null;
      if (plan instanceof LocalLimit) {
        below = rows(((LocalLimit) plan).limitExpr());
      } else if (plan instanceof Project) {
        below = limit;
      }
      planned = children(plan, below);
      if (planned instanceof GlobalLimit || planned instanceof LocalLimit) planned = drained(planned);
    }
    planned = subqueries(planned);
    return planned instanceof V2WriteCommand ? LanceWrites.plan(planned) : planned;
  }

  static Integer rows(Expression limit) {
    Object rows = limit instanceof Literal ? ((Literal) limit).value() : null;
    return rows instanceof Integer ? (Integer) rows : null;
  }

  /**
   * Has a scan below a limit read to its end. Spark's limit stops at its last row; a task that has not met the end of its input destroys
   * its Python worker, and the next one pays for a new worker. A limit above a scan that gives no more rows goes; another stands above a
   * sort by nothing, which reads its input before it gives the first row.
   */
  private static LogicalPlan drained(LogicalPlan plan) throws Exception {
    Integer rows = rows(plan instanceof GlobalLimit ? ((GlobalLimit) plan).limitExpr() : ((LocalLimit) plan).limitExpr());
    LogicalPlan child = (LogicalPlan) Reflection.list(plan.children()).get(0);
    LanceScan scan = limitedScan(child);
    if (scan == null || rows == null) return plan;
    // `isEmpty` stops at the first row of what its LIMIT 1 gives.
    if (scan.rows >= 0 && scan.rows <= rows.intValue()) return rows.intValue() == 1 ? sortedByNothing(child) : child;
    if (plan instanceof GlobalLimit || rows.intValue() > MAX_DRAINED_ROWS) return plan;
    List below = new ArrayList();
    below.add(sortedByNothing(child));
    return (LogicalPlan) plan.withNewChildren(Reflection.seq(below));
  }

  private static boolean sortsPartitions(LogicalPlan plan) {
    return plan instanceof Sort && !((Sort) plan).global();
  }

  private static LogicalPlan sortedByNothing(LogicalPlan plan) throws Exception {
    if (sortsPartitions(plan)) return plan;
    List order = new ArrayList();
    order.add(new SortOrder(Literal$.MODULE$.apply(Integer.valueOf(0)), Ascending$.MODULE$, NullsFirst$.MODULE$, Reflection.seq(new ArrayList())));
    return (LogicalPlan) Reflection.create(Sort.class, new Object[] {Reflection.seq(order), Boolean.FALSE, plan});
  }

  /** The scan that gives all rows of a plan, in partitions that end at the limit; null where there is none. */
  private static LanceScan limitedScan(LogicalPlan plan) {
    LogicalPlan at = plan;
    while (at instanceof Project || at instanceof Filter || sortsPartitions(at)) at = (LogicalPlan) Reflection.list(at.children()).get(0);
    if (!(at instanceof DataSourceV2ScanRelation) || !(((DataSourceV2ScanRelation) at).scan() instanceof LanceScan)) return null;
    LanceScan scan = (LanceScan) ((DataSourceV2ScanRelation) at).scan();
    return scan.limited ? scan : null;
  }

  private LogicalPlan children(LogicalPlan plan, Integer limit) throws Exception {
    List children = new ArrayList();
    boolean changed = false;
    Iterator each = Reflection.list(plan.children()).iterator();
    while (each.hasNext()) {
      LogicalPlan child = (LogicalPlan) each.next();
      LogicalPlan planned = rewrite(child, limit);
      changed |= planned != child;
      children.add(planned);
    }
    return changed ? (LogicalPlan) plan.withNewChildren(Reflection.seq(children)) : plan;
  }

  /** Plans in expressions that earlier rules made late, such as the runtime filters of joins, did not meet this rule yet. */
  private LogicalPlan subqueries(LogicalPlan plan) {
    if (Reflection.list(plan.subqueries()).isEmpty()) return plan;
    return (LogicalPlan) plan.mapExpressions(new AbstractFunction1() {
      public Object apply(Object expression) {
        return inSubquery((Expression) expression);
      }
    });
  }

  private Expression inSubquery(Expression e) {
    if (e instanceof SubqueryExpression) {
      LogicalPlan before = (LogicalPlan) ((SubqueryExpression) e).plan();
      try {
        LogicalPlan after = rewrite(before, null);
        if (after != before) return ((SubqueryExpression) e).withNewPlan(after);
      } catch (Exception error) {
        throw new RewriteFailure(error);
      }
      return e;
    }
    List children = new ArrayList();
    boolean changed = false;
    Iterator each = Reflection.list(e.children()).iterator();
    while (each.hasNext()) {
      Expression child = (Expression) each.next();
      Expression planned = inSubquery(child);
      changed |= planned != child;
      children.add(planned);
    }
    return changed ? (Expression) e.withNewChildren(Reflection.seq(children)) : e;
  }

  /** CREATE TEMPORARY VIEW .. USING lance: such a view follows the latest version, which a DataFrame made by load() must not. */
  private static LogicalPlan marked(CreateTempViewUsing view) throws Exception {
    if (!view.provider().equalsIgnoreCase(LanceSource.NAME)) return view;
    LanceCredentials.refuseBorrowed(Reflection.map(view.options()));
    LanceSource.refuseInternal(new CaseInsensitiveStringMap(Reflection.map(view.options())));
    if (view.options().contains(LanceSource.WRITE_OPTION)) return view;
    Object options = view.options().updated(LanceSource.WRITE_OPTION, LanceSource.VIEW_MARK);
    return (LogicalPlan) Reflection.copy((Product) view, "options", options);
  }

  static boolean isLance(LogicalPlan plan) {
    if (!(plan instanceof DataSourceV2ScanRelation)) return false;
    DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) plan;
    return scan.scan() instanceof PythonScan
        && LanceSource.isOurs(scan.relation().table());
  }

  /** Plans a scan below an aggregate, which may use only some elements of vectors; null where there is none. */
  private LogicalPlan overElements(Aggregate plan) throws Exception {
    Elements elements = new Elements();
    elements.use(Reflection.list(plan.expressions()));
    LogicalPlan child = overScan(plan.child(), null, elements, null);
    if (child == null) return null;
    Map changes = new HashMap();
    changes.put("groupingExpressions", Reflection.seq(elements.rewriteAll(Reflection.list(plan.groupingExpressions()))));
    changes.put("aggregateExpressions", Reflection.seq(elements.rewriteAll(Reflection.list(plan.aggregateExpressions()))));
    changes.put("child", subqueries(child));
    return (LogicalPlan) Reflection.copy((Product) plan, changes);
  }

  /** Plans a scan of the first rows below a sort and its limit; null where the plan is something else. */
  private LogicalPlan firstRows(LogicalPlan plan) throws Exception {
    LanceSorted sorted = LanceSorted.of(plan);
    if (sorted == null) return null;
    Map first = new HashMap();
    first.put("nearest", LanceNearest.wanted(sorted, conf()));
    first.put("top", sorted.top());
    LogicalPlan planned = overScan(sorted.below, null, null, first);
    for (int i = 0; planned != null && i < sorted.above.size(); i++) {
      List child = new ArrayList();
      child.add(subqueries(planned));
      planned = (LogicalPlan) ((LogicalPlan) sorted.above.get(i)).withNewChildren(Reflection.seq(child));
    }
    return planned;
  }

  /** Plans a scan below any filters and at most one projection, and what uses its elements; null where the plan is something else. */
  private LogicalPlan overScan(LogicalPlan plan, Integer limit, Elements above, Map first) throws Exception {
    Project project = plan instanceof Project ? (Project) plan : null;
    LogicalPlan at = project == null ? plan : project.child();
    List filters = new ArrayList();
    while (at instanceof Filter) {
      filters.add(((Filter) at).condition());
      at = ((Filter) at).child();
    }
    if (!isLance(at)) return null;
    DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) at;
    LanceSource source = LanceSource.of(relation.relation());
    if (source == null) return plan;
    List output = Reflection.list(relation.output());
    List projections = project == null ? null : Reflection.list(project.projectList());
    List kept = projections == null ? output : referenced(output, projections, filters);
    List narrowed = kept;
    if (projections != null && conf().nestedSchemaPruningEnabled()) {
      List expressions = new ArrayList(projections);
      expressions.addAll(filters);
      narrowed = Nested.narrow(kept, expressions);
    }

    Map spec = new LinkedHashMap();
    spec.put("columns", schemaOf(narrowed).json());
    Elements elements = above == null ? new Elements() : above;
    for (int i = 0; projections != null && i < projections.size(); i++) {
      if (above == null || !(projections.get(i) instanceof AttributeReference)) elements.use(projections.subList(i, i + 1));
    }
    elements.use(filters);
    spec.put("elements", project == null && above == null ? null : elements.wanted(narrowed));
    boolean pushable = !source.limited();
    Map predicate = pushable ? condition(filters) : null;
    spec.put("predicate", predicate);
    // Python says whether the predicate is translated exactly; what is not in it drops rows above the scan.
    boolean described = filters.isEmpty() || (predicate != null && deterministic(filters));
    spec.put("limit", pushable && described ? limit : null);
    spec.put("aggregate", null);
    spec.put("whole_fragments", Boolean.FALSE);
    if (first != null) spec.putAll(first);
    LanceScan scan = source.scan(spec);
    // A write asks the scan's columns which version their row addresses are of.
    if (scan.rows == 0 && !LanceSource.hasRowColumns(narrowed)) return localRelation(plan.output(), new ArrayList());
    LogicalPlan result = whole(relation, scan, narrowed, source.snapshot);
    elements.shortened(narrowed, scan.elements);

    Nested rewriter = narrowed == kept ? null : Nested.over(narrowed);
    for (int i = filters.size() - 1; i >= 0; i--) {
      Expression condition = (Expression) filters.get(i);
      result = new Filter(elements.rewrite(rewriter == null ? condition : rewriter.rewrite(condition)), result);
    }
    if (project == null) return result;
    return new Project(Reflection.seq(elements.rewriteAll(rewriter == null ? projections : rewriter.rewriteAll(projections))), result);
  }

  /**
   * The scan, and above it what puts the columns together that it gives in another form: vectors without NULL elements in one column and
   * the others in a second, and decimals as integers.
   */
  private static LogicalPlan whole(DataSourceV2ScanRelation relation, LanceScan scan, List asked, String snapshot) throws Exception {
    if (scan.dense.isEmpty() && scan.unscaled.isEmpty()) return withScan(relation, scan, checked(asked, scan.readSchema(), snapshot));
    List given = new ArrayList();
    List others = new ArrayList();
    for (int i = 0; i < asked.size(); i++) {
      AttributeReference a = (AttributeReference) asked.get(i);
      if (scan.dense.contains(a.name())) {
        DataType quick = new ArrayType(((ArrayType) a.dataType()).elementType(), false);
        given.add(new AttributeReference(a.name(), quick, true, a.metadata(), NamedExpression$.MODULE$.newExprId(), a.qualifier()));
        String name = scan.readSchema().fields()[asked.size() + others.size()].name();
        others.add(new AttributeReference(name, a.dataType(), true, Metadata.empty(), NamedExpression$.MODULE$.newExprId(), a.qualifier()));
      } else if (scan.unscaled.contains(a.name())) {
        given.add(new AttributeReference(a.name(), LongType$.MODULE$, a.nullable(), a.metadata(), NamedExpression$.MODULE$.newExprId(), a.qualifier()));
      } else {
        given.add(a);
      }
    }
    given.addAll(others);
    List output = checked(given, scan.readSchema(), snapshot);
    List columns = new ArrayList();
    for (int i = 0; i < asked.size(); i++) {
      Attribute a = (Attribute) asked.get(i);
      Expression value;
      if (scan.dense.contains(a.name())) {
        List halves = new ArrayList();
        halves.add(output.get(i));
        halves.add(others.remove(0));
        value = new Coalesce(Reflection.seq(halves));
      } else if (scan.unscaled.contains(a.name())) {
        DecimalType type = (DecimalType) a.dataType();
        value = new MakeDecimal((Expression) output.get(i), type.precision(), type.scale(), false);
      } else {
        columns.add(output.get(i));
        continue;
      }
      columns.add(new Alias(value, a.name(), a.exprId(), a.qualifier(), new Some(a.metadata()), Reflection.seq(new ArrayList())));
    }
    return new Project(Reflection.seq(columns), withScan(relation, scan, output));
  }

  /**
   * Describes what the scan may filter by; null where that is nothing. A condition that is not deterministic, such as one on
   * monotonically_increasing_id(), depends on the rows that reach it: only what Spark evaluates before it may be pushed below it.
   */
  private static Map condition(List filters) {
    Expression all = null;
    for (int i = filters.size() - 1; i >= 0; i--) {
      ArrayDeque todo = new ArrayDeque();
      todo.push(filters.get(i));
      while (!todo.isEmpty()) {
        Expression next = (Expression) todo.pop();
        if (next instanceof And) {
          todo.push(((BinaryExpression) next).right());
          todo.push(((BinaryExpression) next).left());
          continue;
        }
        if (!next.deterministic()) return all == null ? null : LancePredicates.describe(all);
        all = all == null ? next : new And(all, next);
      }
    }
    return all == null ? null : LancePredicates.describe(all);
  }

  /** JSON of the condition that rows of a scan meet where nothing else decides; null where something does. */
  static String wholePredicate(LogicalPlan plan) throws Exception {
    List filters = new ArrayList();
    LogicalPlan at = plan;
    while (at instanceof Project || at instanceof Filter) {
      if (at instanceof Filter) filters.add(((Filter) at).condition());
      at = (LogicalPlan) Reflection.list(at.children()).get(0);
    }
    Map condition = isLance(at) && deterministic(filters) ? condition(filters) : null;
    return condition == null ? null : LanceSource.JSON.writeValueAsString(condition);
  }

  static boolean deterministic(List filters) {
    Iterator each = filters.iterator();
    while (each.hasNext()) {
      if (!((Expression) each.next()).deterministic()) return false;
    }
    return true;
  }

  private static List referenced(List output, List projections, List filters) {
    Set ids = new HashSet();
    List all = new ArrayList(projections);
    all.addAll(filters);
    Iterator expressions = all.iterator();
    while (expressions.hasNext()) {
      Iterator used = Reflection.list(((Expression) expressions.next()).references()).iterator();
      while (used.hasNext()) ids.add(((Attribute) used.next()).exprId());
    }
    List kept = new ArrayList();
    Iterator attributes = output.iterator();
    while (attributes.hasNext()) {
      Object attribute = attributes.next();
      if (ids.contains(((Attribute) attribute).exprId())) kept.add(attribute);
    }
    return kept;
  }

  static StructType schemaOf(List attributes) {
    StructType schema = new StructType();
    Iterator each = attributes.iterator();
    while (each.hasNext()) {
      Attribute a = (Attribute) each.next();
      schema = schema.add(a.name(), a.dataType(), a.nullable(), a.metadata());
    }
    return schema;
  }

  /**
   * Checks that Python answered with the columns that were asked for, and lets the row addresses name the version that is read: a view
   * that follows the latest version was made when they were those of another one.
   */
  private static List checked(List attributes, StructType answered, String snapshot) {
    if (answered.length() != attributes.size()) throw new IllegalStateException("columns asked for and given differ: " + answered.simpleString());
    List fresh = new ArrayList();
    for (int i = 0; i < attributes.size(); i++) {
      AttributeReference a = (AttributeReference) attributes.get(i);
      StructField field = answered.fields()[i];
      if (!field.name().equals(a.name()) || !DataType.equalsIgnoreNullability(field.dataType(), a.dataType())) {
        throw new IllegalStateException("asked for " + a.name() + " " + a.dataType().sql() + ", given " + field.name() + " " + field.dataType().sql());
      }
      boolean stale = snapshot != null && LanceReads.isRowColumn(a.name());
      fresh.add(stale ? attribute(a, a.dataType(), LanceSource.withSnapshot(a.metadata(), snapshot)) : a);
    }
    return fresh;
  }

  static AttributeReference attribute(AttributeReference a, DataType type, Metadata metadata) {
    return new AttributeReference(a.name(), type, a.nullable(), metadata, a.exprId(), a.qualifier());
  }

  static LogicalPlan withScan(DataSourceV2ScanRelation relation, LanceScan scan, List output) throws Exception {
    Map changes = new HashMap();
    changes.put("scan", scan);
    changes.put("output", Reflection.seq(output));
    // Spark 4.3 would merge scans by building them anew without this rule's predicate and aggregates.
    changes.put("mergeableScan", Boolean.FALSE);
    return (LogicalPlan) Reflection.copy((Product) relation, changes);
  }

  /**
   * Answers an aggregate, grouped by columns or not at all, by partial results of the scan; null where it cannot, as above a filter that
   * Lance does not apply exactly.
   */
  private LogicalPlan aggregate(Aggregate plan) throws Exception {
    LogicalPlan at = plan.child();
    List filters = new ArrayList();
    while (at instanceof Filter || (at instanceof Project && onlyColumns((Project) at))) {
      if (at instanceof Filter) filters.add(((Filter) at).condition());
      at = (LogicalPlan) Reflection.list(at.children()).get(0);
    }
    if (!isLance(at)) return null;
    Map predicate = filters.isEmpty() ? null : condition(filters);
    if (!filters.isEmpty() && (predicate == null || !deterministic(filters) || !LancePredicates.isKnown(predicate))) return null;
    DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) at;
    LanceSource source = LanceSource.of(relation.relation());
    if (source == null || source.limited()) return null;
    Partials partials = new Partials(Reflection.list(relation.output()), Reflection.list(plan.groupingExpressions()), conf().ansiEnabled());
    List results = !partials.groups() ? null : partials.rewriteAll(Reflection.list(plan.aggregateExpressions()));
    if (results == null || partials.calls.isEmpty()) return null;
    Map spec = new LinkedHashMap();
    spec.put("columns", new StructType().json());
    spec.put("predicate", predicate);
    spec.put("limit", null);
    spec.put("aggregate", partials.calls);
    spec.put("whole_fragments", Boolean.FALSE);
    LanceScan scan = source.scan(spec);
    if (scan == null || scan.rows > partials.mostRows) return null;
    LogicalPlan local = scan.answer == null ? null : local(plan, partials.answered(Reflection.list(plan.aggregateExpressions()), scan.answer));
    if (local != null) return local;
    LogicalPlan input = withScan(relation, scan, checked(partials.attributes, scan.readSchema(), null));
    Map changes = new HashMap();
    changes.put("aggregateExpressions", Reflection.seq(results));
    changes.put("child", input);
    return (LogicalPlan) Reflection.copy((Product) plan, changes);
  }

  /** One row of expressions that need no input; null where one of them does, or fails, which it then does when the query runs. */
  private static LogicalPlan local(LogicalPlan plan, List expressions) throws Exception {
    Object[] values = new Object[expressions.size()];
    for (int i = 0; i < values.length; i++) {
      Expression value = (Expression) expressions.get(i);
      if (value instanceof Alias) value = ((Alias) value).child();
      if (!value.foldable()) return null;
      try {
        values[i] = value.eval(InternalRow$.MODULE$.empty());
      } catch (RuntimeException error) {
        return null;
      }
    }
    List rows = new ArrayList();
    rows.add(new GenericInternalRow(values));
    return localRelation(plan.output(), rows);
  }

  static LogicalPlan localRelation(scala.collection.immutable.Seq output, List rows) throws Exception {
    return (LogicalPlan) Reflection.create(LocalRelation.class, new Object[] {output, Reflection.seq(rows)});
  }

  private static boolean onlyColumns(Project project) {
    Iterator each = Reflection.list(project.projectList()).iterator();
    while (each.hasNext()) {
      if (!(each.next() instanceof AttributeReference)) return false;
    }
    return true;
  }
}
