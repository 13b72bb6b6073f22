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
  private final Set kept = new HashSet();

  LanceMerge(MergeRows rows) {
    this.rows = rows;
  }

  boolean inserts() throws Exception {
    return does(LanceStatement.INSERTS);
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

  /** Whether all updates leave the column at a position as it is; a column of which that is so is not read for them. */
  boolean keeps(int at, String name) throws Exception {
    if (!does(LanceStatement.UPDATES)) return false;
    for (int c = 0; c < CLAUSES.length; c++) {
      Iterator each = clauses(c).iterator();
      while (each.hasNext()) {
        Object clause = each.next();
        List output = output(clause);
        // Spark splits no update here, so what is no list of values discards the row.
        if (output == null || action(output) != LanceStatement.UPDATES) continue;
        Object value = output.get(at);
        Object address = output.get(output.size() - 1);
        if (!(value instanceof Attribute) || !(address instanceof Attribute)) return false;
        Object[] from = LanceStatement.origin(rows.child(), (Attribute) value);
        Object[] row = LanceStatement.origin(rows.child(), (Attribute) address);
        if (from == null || row == null || from[0] != row[0] || !from[1].equals(name)) return false;
      }
    }
    kept.add(Integer.valueOf(at));
    return true;
  }

  /** Returns the merge without the values that are kept. */
  MergeRows pruned() throws Exception {
    Map changes = new HashMap();
    for (int c = 0; c < CLAUSES.length; c++) {
      List pruned = new ArrayList();
      Iterator each = clauses(c).iterator();
      while (each.hasNext()) pruned.add(pruned(each.next()));
      changes.put(CLAUSES[c], Reflection.seq(pruned));
    }
    return (MergeRows) Reflection.copy((Product) rows, changes);
  }

  private Object pruned(Object clause) throws Exception {
    List output = output(clause);
    if (output == null || action(output) != LanceStatement.UPDATES) return clause;
    for (int i = 0; i < output.size(); i++) {
      if (kept.contains(Integer.valueOf(i))) output.set(i, Literal$.MODULE$.create(null, ((Expression) output.get(i)).dataType()));
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
