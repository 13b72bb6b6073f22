package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.CreateTempViewUsing;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.Seq;

/**
 * The planner rule. It gives Lance scans the columns, the predicate and the limit that Spark's
 * optimizer computed, and answers counts, sums, averages, minima and maxima in the scan. Spark's
 * own filter and final aggregate stay in the plan, so a weaker scan never changes a result.
 */
public class LancePushdown extends Rule<LogicalPlan> {
  /** Most rows of a limit for a drained scan. */
  private static final int MAX_DRAINED_ROWS = 10000;

  private static final Logger LOG = LoggerFactory.getLogger("lance_spark.pushdown");

  /** Set in a thread to switch the rule off. */
  private static final ThreadLocal<Boolean> IS_OFF = new ThreadLocal<>();

  /** The session belongs to the program of the driver. */
  boolean own;

  /** Adds the rule to a session without a rule, and returns the rule of the session. */
  static LancePushdown enable(SparkSession session) {
    new LanceDistance().register(session);
    LancePushdown sessionRule = of(session);
    if (sessionRule != null) return sessionRule;
    LancePushdown rule = new LancePushdown();
    List<Rule<LogicalPlan>> rules = Scala.list(session.experimental().extraOptimizations());
    rules.add(rule);
    session.experimental().extraOptimizations_$eq(Scala.seq(rules));
    List<SparkStrategy> strategies = Scala.list(session.experimental().extraStrategies());
    if (strategies.stream().noneMatch(strategy -> strategy instanceof LanceTransfer.Strategy)) {
      strategies.add(new LanceTransfer.Strategy());
      session.experimental().extraStrategies_$eq(Scala.seq(strategies));
    }
    return rule;
  }

  /** Returns the rule of a session, or null. */
  static LancePushdown of(SparkSession session) {
    for (Object rule : Scala.list(session.experimental().extraOptimizations())) {
      if (rule instanceof LancePushdown pushdown) return pushdown;
    }
    return null;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    if (IS_OFF.get() != null) return plan;
    AnalysisException refusal;
    try {
      LogicalPlan statement = CatalogSupport.statement(plan);
      if (statement != null) return statement;
      refusal = LanceCommands.refusal(plan);
      // Spark first optimizes each subquery alone. The whole query follows and merges subqueries.
      if (plan instanceof Subquery) return plan;
      if (refusal == null) {
        LogicalPlan newPlan = rewrite(LanceMerging.merged(plan, conf()), null);
        readRowsBelowPython(newPlan, false);
        return newPlan;
      }
    } catch (Throwable error) {
      // Errors of the package tell the user what to change. After any other error, the plan is
      // correct without this rule.
      if (Errors.isTyped(error)
          || error instanceof VirtualMachineError
          || error instanceof InterruptedException) {
        throw Errors.thrown(error);
      }
      LOG.warn("lance pushdown failed; the query runs without it", error);
      return plan;
    }
    throw Errors.thrown(refusal);
  }

  /** Lets the scans below functions of Python return rows. */
  private static void readRowsBelowPython(LogicalPlan plan, boolean isBelow) {
    boolean isPython = isBelow || plan instanceof BaseEvalPython;
    if (isPython
        && plan instanceof DataSourceV2ScanRelation relation
        && relation.scan() instanceof LanceScan scan) {
      scan.isBelowPython = true;
    }
    Trees.children(plan).forEach(child -> readRowsBelowPython(child, isPython));
    Scala.list(plan.subqueries()).forEach(query -> readRowsBelowPython(query, false));
  }

  private LogicalPlan rewrite(LogicalPlan plan, Integer limit) {
    if (plan instanceof CreateTempViewUsing view) return marked(view);
    if (plan instanceof RefreshTable command) LanceCommands.refresh(command);
    // Spark deletes from the table itself, so the scan of a table without rows must stay.
    if (plan instanceof DeleteFromTable) return plan;
    if (plan instanceof Aggregate aggregate) {
      LogicalPlan aggregatePlan = overPartials(aggregate);
      if (aggregatePlan != null) return inSubqueries(aggregatePlan);
    }
    LogicalPlan newPlan = firstRows(plan);
    if (newPlan == null) {
      newPlan =
          plan instanceof Aggregate aggregate
              ? overElements(aggregate)
              : overScan(plan, limit, null, null);
    }
    if (newPlan == null) {
      Integer limitBelow = plan instanceof Project ? limit : null;
      if (plan instanceof LocalLimit local) limitBelow = rowsOf(local.limitExpr());
      Integer childLimit = limitBelow;
      newPlan = Trees.mapChildren(plan, child -> rewrite(child, childLimit));
      if (newPlan instanceof GlobalLimit || newPlan instanceof LocalLimit) {
        newPlan = drained(newPlan);
      }
    }
    newPlan = inSubqueries(newPlan);
    return newPlan instanceof V2WriteCommand ? LanceWrites.plan(newPlan) : newPlan;
  }

  /** Returns the number of rows of a constant limit, or null. */
  static Integer rowsOf(Expression limit) {
    return limit instanceof Literal literal && literal.value() instanceof Integer rows
        ? rows
        : null;
  }

  /**
   * Makes Spark read a scan below a limit to its end. A limit stops at its last row, and a task
   * that stops early destroys its Python worker; the next task pays for a new worker. A limit above
   * a scan with as few rows is removed. Any other limit gets a sort by a constant, which reads its
   * input before the first row.
   */
  private static LogicalPlan drained(LogicalPlan plan) {
    Integer rows =
        rowsOf(
            plan instanceof GlobalLimit global
                ? global.limitExpr()
                : ((LocalLimit) plan).limitExpr());
    LogicalPlan child = Trees.children(plan).get(0);
    LanceScan scan = limitedScan(child);
    if (scan == null || rows == null) return plan;
    // `isEmpty` stops at the first row of its LIMIT 1.
    if (scan.rows >= 0 && scan.rows <= rows) return rows == 1 ? sortedByNothing(child) : child;
    if (plan instanceof GlobalLimit || rows > MAX_DRAINED_ROWS) return plan;
    return plan.withNewChildren(Scala.seqOf(sortedByNothing(child)));
  }

  private static boolean sortsPartitions(LogicalPlan plan) {
    return plan instanceof Sort sort && !sort.global();
  }

  private static LogicalPlan sortedByNothing(LogicalPlan plan) {
    if (sortsPartitions(plan)) return plan;
    Literal zero = Literal$.MODULE$.apply((Object) 0);
    return sortedWithinPartitions(plan, zero);
  }

  /** Sorts each partition, ascending and NULL first. */
  static LogicalPlan sortedWithinPartitions(LogicalPlan plan, Expression key) {
    SortOrder order = new SortOrder(key, Ascending$.MODULE$, NullsFirst$.MODULE$, Scala.seqOf());
    return SparkRelease.create(Sort.class, Scala.seqOf(order), false, plan);
  }

  /** Returns the scan of all rows of a plan if its partitions end at the limit, else null. */
  private static LanceScan limitedScan(LogicalPlan plan) {
    LogicalPlan at = plan;
    while (at instanceof Project || at instanceof Filter || sortsPartitions(at)) {
      at = Trees.children(at).get(0);
    }
    return at instanceof DataSourceV2ScanRelation relation
            && relation.scan() instanceof LanceScan scan
            && scan.limited
        ? scan
        : null;
  }

  /** Rewrites plans in the expressions of late rules, for example runtime filters of joins. */
  private LogicalPlan inSubqueries(LogicalPlan plan) {
    if (plan.subqueries().isEmpty()) return plan;
    return plan.mapExpressions(Scala.function(this::inSubquery));
  }

  private Expression inSubquery(Expression e) {
    if (e instanceof SubqueryExpression subquery) {
      LogicalPlan before = subquery.plan();
      LogicalPlan after = rewrite(before, null);
      return after == before ? e : subquery.withNewPlan(after);
    }
    return Trees.mapChildren(e, this::inSubquery);
  }

  /**
   * CREATE TEMPORARY VIEW .. USING lance: the view follows the latest version. A DataFrame of
   * load() stays at its version.
   */
  private static LogicalPlan marked(CreateTempViewUsing view) {
    if (!view.provider().equalsIgnoreCase(LanceSource.NAME)) return view;
    Map<String, String> options = Scala.map(view.options());
    LanceCredentials.refuseBorrowed(options);
    LanceSource.refuseInternal(new CaseInsensitiveStringMap(options));
    if (options.containsKey(LanceSource.WRITE_OPTION)) return view;
    options.put(LanceSource.WRITE_OPTION, LanceSource.VIEW_MARK);
    return SparkRelease.copy(view, "options", Scala.immutableMap(options));
  }

  static boolean isLance(LogicalPlan plan) {
    return plan instanceof DataSourceV2ScanRelation relation
        && relation.scan() instanceof PythonScan
        && LanceSource.isOurs(relation.relation().table());
  }

  /**
   * Plans a scan below an aggregate with a possible use of only some elements of vectors. Returns
   * null without such a scan.
   */
  private LogicalPlan overElements(Aggregate plan) {
    Elements elements = new Elements();
    elements.use(Scala.list(plan.expressions()));
    LogicalPlan child = overScan(plan.child(), null, elements, null);
    if (child == null) return null;
    List<Expression> grouping = Scala.list(plan.groupingExpressions());
    List<Expression> aggregates = expressionsOf(plan.aggregateExpressions());
    return SparkRelease.copy(
        plan,
        Map.of(
            "groupingExpressions", Scala.seq(elements.rewriteAll(grouping)),
            "aggregateExpressions", Scala.seq(elements.rewriteAll(aggregates)),
            "child", inSubqueries(child)));
  }

  /** Plans a scan of the first rows below a sort and its limit. Returns null for other plans. */
  private LogicalPlan firstRows(LogicalPlan plan) {
    LanceSorted sorted = LanceSorted.of(plan);
    if (sorted == null) return null;
    Json first =
        new Json().with("nearest", LanceNearest.request(sorted, conf())).with("top", sorted.top());
    LogicalPlan newPlan = overScan(sorted.below(), null, null, first);
    if (newPlan == null) return null;
    for (LogicalPlan above : sorted.above()) {
      newPlan = above.withNewChildren(Scala.seqOf(inSubqueries(newPlan)));
    }
    return newPlan;
  }

  /** NamedExpression is an interface in Java; all of its classes are expressions. */
  static List<Expression> expressionsOf(Seq<NamedExpression> named) {
    return Scala.list(named).stream().map(Expression.class::cast).toList();
  }

  /**
   * Plans a scan below filters and an optional projection. Returns null for other plans.
   *
   * @param limit most rows of the plan, or null
   * @param above the elements that an aggregate above the plan uses, or null without an aggregate
   * @param first the request of the first rows by a sort, or null
   */
  private LogicalPlan overScan(LogicalPlan plan, Integer limit, Elements above, Json first) {
    Project project = plan instanceof Project p ? p : null;
    LogicalPlan at = project == null ? plan : project.child();
    List<Expression> filters = new ArrayList<>();
    for (; at instanceof Filter filter; at = filter.child()) filters.add(filter.condition());
    if (!isLance(at)) return null;
    DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) at;
    LanceSource source = LanceSource.of(relation.relation());
    if (source == null) return plan;

    List<AttributeReference> output = Scala.list(relation.output());
    List<Expression> projections =
        project == null ? List.of() : expressionsOf(project.projectList());
    List<Expression> all = new ArrayList<>(projections);
    all.addAll(filters);
    List<AttributeReference> columns = project == null ? output : referenced(output, all);
    boolean prunes = project != null && conf().nestedSchemaPruningEnabled();
    List<AttributeReference> narrowColumns = prunes ? Nested.narrow(columns, all) : columns;

    Elements elements = above == null ? new Elements() : above;
    for (Expression projection : projections) {
      boolean passedUp = above != null && projection instanceof AttributeReference;
      if (!passedUp) elements.use(List.of(projection));
    }
    elements.use(filters);
    boolean pushable = !source.isLimited();
    Json predicate = pushable ? condition(filters) : null;
    // Python tells whether the predicate is exact. Conditions outside it drop rows above the scan.
    boolean isDescribed =
        filters.isEmpty() || (predicate != null && Trees.areDeterministic(filters));
    Json spec =
        request(schemaOf(narrowColumns), predicate)
            .with(
                "elements",
                project == null && above == null ? null : elements.requests(narrowColumns))
            .with("limit", pushable && isDescribed ? limit : null);
    if (first != null) spec.putAll(first);
    LanceScan scan = source.scan(spec);
    // A write reads the version of row addresses from the columns of the scan.
    if (scan.rows == 0 && !LanceSource.hasRowColumns(narrowColumns)) {
      return localRelation(plan.output(), List.of());
    }
    List<Expression> joins = joins(filters, scan);
    LogicalPlan result = restored(relation, scan, narrowColumns, source.snapshot, joins);
    if (relation.scan() instanceof UnplannedScan unplanned) {
      scan.keys = RuntimeFilter.columns(unplanned, filters, narrowColumns);
    }
    elements.recordShortened(narrowColumns, scan.elements);

    Nested nested = narrowColumns == columns ? null : Nested.over(narrowColumns);
    for (int i = filters.size() - 1; i >= 0; i--) {
      Expression condition = RuntimeFilter.withoutJoins(filters.get(i));
      if (condition == null) continue;
      if (nested != null) condition = nested.rewrite(condition);
      result = inSubqueries(new Filter(elements.rewrite(condition), result));
    }
    if (project == null) return result;
    if (nested != null) projections = nested.rewriteAll(projections);
    return new Project(namedSeq(elements.rewriteAll(projections)), result);
  }

  static Seq<NamedExpression> namedSeq(List<? extends Expression> expressions) {
    return Scala.seq(expressions.stream().map(NamedExpression.class::cast).toList());
  }

  /** A request of lance_spark/read/planning/pushdown_request.py. */
  private static Json request(StructType columns, Json predicate) {
    return new Json()
        .with("columns", columns.json())
        .with("predicate", predicate)
        .with("limit", null)
        .with("aggregate", null)
        .with("whole_fragments", false);
  }

  /**
   * Returns the scan below a projection that restores columns from another form: vectors come in
   * two columns, with and without NULL elements, and decimals come as integers.
   *
   * @param joins the conditions of joins on columns that the scan gives as they are
   */
  private static LogicalPlan restored(
      DataSourceV2ScanRelation relation,
      LanceScan scan,
      List<AttributeReference> columns,
      String snapshot,
      List<Expression> joins) {
    if (scan.dense.isEmpty() && scan.unscaled.isEmpty()) {
      return joined(withScan(relation, scan, checked(columns, scan.readSchema(), snapshot)), joins);
    }
    StructField[] answered = scan.readSchema().fields();
    List<AttributeReference> scanned = new ArrayList<>();
    List<AttributeReference> secondHalves = new ArrayList<>();
    for (AttributeReference column : columns) {
      if (scan.dense.contains(column.name())) {
        ArrayType type = (ArrayType) column.dataType();
        scanned.add(newAttribute(column, new ArrayType(type.elementType(), false), true));
        String name = answered[columns.size() + secondHalves.size()].name();
        secondHalves.add(Trees.attribute(name, type, true).withQualifier(column.qualifier()));
      } else if (scan.unscaled.contains(column.name())) {
        scanned.add(newAttribute(column, LongType$.MODULE$, column.nullable()));
      } else {
        scanned.add(column);
      }
    }
    Iterator<AttributeReference> halves = secondHalves.iterator();
    scanned.addAll(secondHalves);
    List<AttributeReference> output = checked(scanned, scan.readSchema(), snapshot);
    List<Expression> restoredColumns = new ArrayList<>();
    for (int i = 0; i < columns.size(); i++) {
      AttributeReference column = columns.get(i);
      AttributeReference value = output.get(i);
      if (scan.dense.contains(column.name())) {
        Seq<Expression> both = Scala.seqOf(value, halves.next());
        restoredColumns.add(Trees.aliasAs(new Coalesce(both), column));
      } else if (scan.unscaled.contains(column.name())) {
        DecimalType type = (DecimalType) column.dataType();
        MakeDecimal decimal = new MakeDecimal(value, type.precision(), type.scale(), false);
        restoredColumns.add(Trees.aliasAs(decimal, column));
      } else {
        restoredColumns.add(value);
      }
    }
    LogicalPlan below = joined(withScan(relation, scan, output), joins);
    return new Project(namedSeq(restoredColumns), below);
  }

  /** Returns the conditions of joins with a smaller side. Their keys select rows of the scan. */
  private List<Expression> joins(List<Expression> filters, LanceScan scan) {
    return Trees.mapAll(RuntimeFilter.joins(filters), this::inSubquery).stream()
        .filter(join -> RuntimeFilter.isSmaller(join, scan))
        .toList();
  }

  /** Puts the conditions of joins next to the scan, because Spark searches only next to a scan. */
  private static LogicalPlan joined(LogicalPlan scan, List<Expression> joins) {
    return joins.stream()
        .filter(join -> join.references().subsetOf(scan.outputSet()))
        .reduce(And::new)
        .<LogicalPlan>map(condition -> new Filter(condition, scan))
        .orElse(scan);
  }

  private static AttributeReference newAttribute(
      AttributeReference like, DataType type, boolean nullable) {
    return new AttributeReference(
        like.name(),
        type,
        nullable,
        like.metadata(),
        NamedExpression$.MODULE$.newExprId(),
        like.qualifier());
  }

  /**
   * Describes the condition for the scan, or returns null. The value of a non-deterministic
   * condition, such as monotonically_increasing_id(), depends on the rows that reach it. Only the
   * conjuncts before this condition may move below the condition.
   */
  private static Json condition(List<Expression> filters) {
    Expression all = null;
    for (int i = filters.size() - 1; i >= 0; i--) {
      for (Expression conjunct : Trees.conjuncts(filters.get(i))) {
        if (!conjunct.deterministic()) return all == null ? null : LancePredicates.describe(all);
        all = all == null ? conjunct : new And(all, conjunct);
      }
    }
    return all == null ? null : LancePredicates.describe(all);
  }

  /** Returns the condition of the rows of a plan, or null if the plan also does other things. */
  static Json wholePredicate(LogicalPlan plan) {
    List<Expression> filters = new ArrayList<>();
    LogicalPlan at = plan;
    while (at instanceof Project || at instanceof Filter) {
      if (at instanceof Filter filter) filters.add(filter.condition());
      at = Trees.children(at).get(0);
    }
    return isLance(at) && Trees.areDeterministic(filters) ? condition(filters) : null;
  }

  /** Tells whether a plan gives all rows of a table, as they are. */
  static boolean isWholeTable(LogicalPlan plan) {
    LogicalPlan at = plan;
    while (at instanceof Project) at = Trees.children(at).get(0);
    return isLance(at);
  }

  /** Runs a function while the rule is off in this thread. */
  static <T> T without(Supplier<T> function) {
    IS_OFF.set(true);
    try {
      return function.get();
    } finally {
      IS_OFF.remove();
    }
  }

  /** Returns the columns in expressions. */
  static <T extends Attribute> List<T> referenced(List<T> output, List<Expression> expressions) {
    Set<ExprId> ids = new HashSet<>();
    for (Expression e : expressions) {
      for (Attribute attribute : Scala.list(e.references())) ids.add(attribute.exprId());
    }
    return output.stream().filter(column -> ids.contains(column.exprId())).toList();
  }

  static StructType schemaOf(List<? extends Attribute> attributes) {
    return new StructType(
        attributes.stream()
            .map(a -> new StructField(a.name(), a.dataType(), a.nullable(), a.metadata()))
            .toArray(StructField[]::new));
  }

  /**
   * Checks the columns of Python's answer. Row addresses of a view that follows the latest version
   * get the current version in their metadata.
   */
  private static List<AttributeReference> checked(
      List<AttributeReference> attributes, StructType answer, String snapshot) {
    if (answer.length() != attributes.size()) {
      throw new IllegalStateException(
          "the columns of the request and of the answer differ: " + answer.simpleString());
    }
    List<AttributeReference> fresh = new ArrayList<>();
    for (int i = 0; i < attributes.size(); i++) {
      AttributeReference a = attributes.get(i);
      StructField field = answer.fields()[i];
      if (!field.name().equals(a.name())
          || !DataType.equalsIgnoreNullability(field.dataType(), a.dataType())) {
        throw new IllegalStateException(
            String.format(
                "the request has the column %s %s, and the answer %s %s",
                a.name(), a.dataType().sql(), field.name(), field.dataType().sql()));
      }
      boolean stale = snapshot != null && LanceReads.isRowColumn(a.name());
      Metadata metadata = a.metadata();
      if (stale) metadata = LanceSource.withSnapshot(metadata, snapshot);
      fresh.add(stale ? attribute(a, a.dataType(), metadata) : a);
    }
    return fresh;
  }

  static AttributeReference attribute(AttributeReference a, DataType type, Metadata metadata) {
    return new AttributeReference(
        a.name(), type, a.nullable(), metadata, a.exprId(), a.qualifier());
  }

  static LogicalPlan withScan(
      DataSourceV2ScanRelation relation, LanceScan scan, List<AttributeReference> output) {
    // Spark 4.3 merges scans by a new build without the predicate and aggregates of this rule.
    return SparkRelease.copy(
        relation, Map.of("scan", scan, "output", Scala.seq(output), "mergeableScan", false));
  }

  /**
   * Answers an aggregate by partial results of the scan, grouped by columns or not. Returns null if
   * the scan cannot, for example above a filter that Lance does not apply exactly.
   */
  private LogicalPlan overPartials(Aggregate plan) {
    LogicalPlan at = plan.child();
    List<Expression> filters = new ArrayList<>();
    while (at instanceof Filter || (at instanceof Project project && hasOnlyColumns(project))) {
      if (at instanceof Filter filter) filters.add(filter.condition());
      at = Trees.children(at).get(0);
    }
    if (!isLance(at)) return null;
    // A join above groups has keys of groups, so its condition drops whole groups.
    List<Expression> rowFilters =
        filters.stream().map(RuntimeFilter::withoutJoins).filter(Objects::nonNull).toList();
    Json predicate = rowFilters.isEmpty() ? null : condition(rowFilters);
    boolean exact =
        rowFilters.isEmpty()
            || (predicate != null
                && Trees.areDeterministic(rowFilters)
                && LancePredicates.isKnown(predicate));
    if (!exact) return null;
    DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) at;
    LanceSource source = LanceSource.of(relation.relation());
    if (source == null || source.isLimited()) return null;
    List<AttributeReference> columns = Scala.list(relation.output());
    List<Expression> grouping = Scala.list(plan.groupingExpressions());
    List<Expression> aggregates = expressionsOf(plan.aggregateExpressions());
    Partials partials = new Partials(columns, grouping, conf().ansiEnabled());
    List<Expression> results = partials.groups() ? partials.rewriteAll(aggregates) : null;
    if (results == null || partials.calls.isEmpty()) return null;
    LanceScan scan =
        source.scan(request(new StructType(), predicate).with("aggregate", partials.calls));
    if (scan == null || scan.rows > partials.mostRows) return null;
    if (scan.answer != null) {
      LogicalPlan local = constantRow(plan, partials.withValues(aggregates, scan.answer));
      if (local != null) return local;
    }
    List<AttributeReference> output = checked(partials.attributes, scan.readSchema(), null);
    Map<String, Object> changes = new HashMap<>();
    changes.put("aggregateExpressions", Scala.seq(results));
    changes.put("child", joined(withScan(relation, scan, output), joins(filters, scan)));
    return SparkRelease.copy(plan, changes);
  }

  /**
   * Evaluates expressions without input to a single row. Returns null if an expression needs input
   * or fails; the failure then happens when the query runs.
   */
  private static LogicalPlan constantRow(LogicalPlan plan, List<Expression> expressions) {
    Object[] values = new Object[expressions.size()];
    for (int i = 0; i < values.length; i++) {
      Expression value = expressions.get(i) instanceof Alias a ? a.child() : expressions.get(i);
      if (!value.foldable()) return null;
      try {
        values[i] = value.eval(InternalRow.empty());
      } catch (RuntimeException error) {
        return null;
      }
    }
    return localRelation(plan.output(), List.of(new GenericInternalRow(values)));
  }

  static LogicalPlan localRelation(Seq<Attribute> output, List<? extends InternalRow> rows) {
    return SparkRelease.create(LocalRelation.class, output, Scala.seq(rows));
  }

  private static boolean hasOnlyColumns(Project project) {
    return Scala.list(project.projectList()).stream()
        .allMatch(AttributeReference.class::isInstance);
  }
}
