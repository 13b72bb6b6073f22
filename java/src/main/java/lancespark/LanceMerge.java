package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.MergeRows;
import scala.Product;

/**
 * The clauses of a MERGE in Spark's plan. Each clause holds the new values of a row, for one
 * combination of target and source. The scan skips values without a change by updates: tasks copy
 * them from the row, so the join carries only the columns in the statement.
 */
final class LanceMerge {
  private final MergeRows rows;

  /** The new values of each clause that updates a row, and the actions of all clauses. */
  private final List<List<Expression>> updates = new ArrayList<>();

  private final Set<Integer> actions = new HashSet<>();
  private final ColumnOrigins origins;

  /** Position of the row address in the values of a clause. */
  private final int address;

  /** Positions of the columns without changes by updates. */
  private final Set<Integer> unchangedPositions = new HashSet<>();

  LanceMerge(MergeRows rows, int address) {
    this.rows = rows;
    this.address = address;
    this.origins = ColumnOrigins.of(rows.child());
    for (MergeRows.Instruction clause : Scala.<MergeRows.Instruction>list(rows.instructions())) {
      List<Expression> values = valuesOf(clause);
      actions.add(actionOf(values));
      if (actionOf(values) == RowLevelCommand.UPDATES) updates.add(values);
    }
  }

  boolean inserts() {
    return actions.contains(RowLevelCommand.INSERTS);
  }

  /**
   * Tells whether updates exist and leave the column at a position unchanged. The scan then skips
   * the column for updates.
   */
  boolean skips(int position, String name) {
    if (updates.isEmpty() || changes(position, name)) return false;
    unchangedPositions.add(position);
    return true;
  }

  /** Tells whether an update changes the column at a position. */
  boolean changes(int position, String name) {
    return updates.stream().anyMatch(values -> !copiesColumn(values, position, name));
  }

  private boolean copiesColumn(List<Expression> values, int position, String name) {
    return values.get(position) instanceof Attribute value
        && values.get(address) instanceof Attribute row
        && origins.isCopy(value, name, row);
  }

  /** Returns the merge without unchanged values and without values at unused positions. */
  MergeRows pruned(Set<Integer> usedPositions) {
    Map<String, Object> changes = new HashMap<>();
    changes.put("matchedInstructions", pruned(rows.matchedInstructions(), usedPositions));
    changes.put("notMatchedInstructions", pruned(rows.notMatchedInstructions(), usedPositions));
    changes.put(
        "notMatchedBySourceInstructions",
        pruned(rows.notMatchedBySourceInstructions(), usedPositions));
    return SparkRelease.copy(rows, changes);
  }

  private Object pruned(
      scala.collection.immutable.Seq<MergeRows.Instruction> clauses, Set<Integer> usedPositions) {
    return Scala.seq(
        Scala.list(clauses).stream().map(clause -> pruned(clause, usedPositions)).toList());
  }

  private Object pruned(MergeRows.Instruction clause, Set<Integer> usedPositions) {
    List<Expression> values = valuesOf(clause);
    if (values.isEmpty()) return clause;
    boolean isUpdate = actionOf(values) == RowLevelCommand.UPDATES;
    List<Expression> prunedValues = new ArrayList<>();
    int count = rows.output().size();
    // A clause repeats its row columns after the columns of the output.
    for (int i = 0; i < count; i++) {
      boolean isNeeded = usedPositions.contains(i) && !(isUpdate && unchangedPositions.contains(i));
      Expression value = values.get(i);
      prunedValues.add(isNeeded ? value : Literal$.MODULE$.create((Object) null, value.dataType()));
    }
    return SparkRelease.copy((Product) clause, "output", Scala.seq(prunedValues));
  }

  /**
   * Returns the values of a clause that writes a row, or an empty list for a clause that drops the
   * row. Spark does not split updates in this plan.
   */
  private static List<Expression> valuesOf(MergeRows.Instruction clause) {
    return clause instanceof MergeRows.Keep keep ? Scala.list(keep.output()) : List.of();
  }

  private static int actionOf(List<Expression> values) {
    if (values.isEmpty()) return -1;
    Expression first = values.get(0) instanceof Alias alias ? alias.child() : values.get(0);
    return first instanceof Literal literal && literal.value() instanceof Integer action
        ? action
        : -1;
  }
}
