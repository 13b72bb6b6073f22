package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.MergeRows;
import scala.Product;

/**
 * The clauses of a MERGE, as Spark writes them: what a row becomes, for each combination of a row of the table and one of the source. A value
 * that an update leaves as it is needs no reading: the tasks take it from the row, so that the join carries what the statement names alone.
 */
final class LanceMerge {
  private static final String[] CLAUSES = {"matchedInstructions", "notMatchedInstructions", "notMatchedBySourceInstructions"};

  private final MergeRows rows;
  /** Where the address of a row is among the values of a clause. */
  private final int address;
  private final Set kept = new HashSet();

  LanceMerge(MergeRows rows, int address) {
    this.rows = rows;
    this.address = address;
  }

  boolean inserts() throws Exception {
    return does(RowLevelCommand.INSERTS);
  }

  private boolean does(int action) throws Exception {
    for (int c = 0; c < CLAUSES.length; c++) {
      Iterator each = clauses(c).iterator();
      while (each.hasNext()) {
        List output = output(each.next());
        if (output != null && action(output) == action) return true;
      }
    }
    return false;
  }

  /** Whether there are updates, and all leave the column at a position as it is; it is not read for them then. */
  boolean keeps(int at, String name) throws Exception {
    if (!does(RowLevelCommand.UPDATES) || changes(at, name)) return false;
    kept.add(Integer.valueOf(at));
    return true;
  }

  /** Whether an update gives the column at a position another value. */
  boolean changes(int at, String name) throws Exception {
    for (int c = 0; c < CLAUSES.length; c++) {
      Iterator each = clauses(c).iterator();
      while (each.hasNext()) {
        Object clause = each.next();
        List output = output(clause);
        // Spark splits no update here, so what is no list of values discards the row.
        if (output == null || action(output) != RowLevelCommand.UPDATES) continue;
        Object value = output.get(at);
        if (!(value instanceof Attribute) || !(output.get(address) instanceof Attribute)) return true;
        Object[] from = RowLevelCommand.origin(rows.child(), (Attribute) value);
        Object[] row = RowLevelCommand.origin(rows.child(), (Attribute) output.get(address));
        if (from == null || row == null || from[0] != row[0] || !from[1].equals(name)) return true;
      }
    }
    return false;
  }

  /** Returns the merge without the values that are kept, and without those whose places are not used. */
  MergeRows pruned(Set used) throws Exception {
    Map changes = new HashMap();
    for (int c = 0; c < CLAUSES.length; c++) {
      List pruned = new ArrayList();
      Iterator each = clauses(c).iterator();
      while (each.hasNext()) pruned.add(pruned(each.next(), used));
      changes.put(CLAUSES[c], Reflection.seq(pruned));
    }
    return (MergeRows) Reflection.copy((Product) rows, changes);
  }

  private Object pruned(Object clause, Set used) throws Exception {
    List output = output(clause);
    if (output == null) return clause;
    // Where a clause names columns of rows, Spark gives those columns once more, and not in what comes out.
    output = output.subList(0, Reflection.list(rows.output()).size());
    boolean updates = action(output) == RowLevelCommand.UPDATES;
    for (int i = 0; i < output.size(); i++) {
      boolean needed = used.contains(Integer.valueOf(i)) && !(updates && kept.contains(Integer.valueOf(i)));
      if (!needed) output.set(i, Literal$.MODULE$.create(null, ((Expression) output.get(i)).dataType()));
    }
    return Reflection.copy((Product) clause, "output", Reflection.seq(output));
  }

  private List clauses(int c) throws Exception {
    return Reflection.list((scala.collection.Iterable) Reflection.call(rows, CLAUSES[c]));
  }

  /** The values of a clause that keeps a row in some form; null of one that drops it. */
  private static List output(Object clause) throws Exception {
    return clause.getClass().getSimpleName().endsWith("Keep") ? Reflection.list((scala.collection.Iterable) Reflection.call(clause, "output")) : null;
  }

  private static int action(List output) {
    Object first = output.get(0);
    Object value = first instanceof Alias ? ((Alias) first).child() : first;
    Object number = value instanceof Literal ? ((Literal) value).value() : null;
    return number instanceof Integer ? ((Integer) number).intValue() : -1;
  }
}
