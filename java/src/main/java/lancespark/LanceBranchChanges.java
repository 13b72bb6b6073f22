package lancespark;

import java.util.IdentityHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.unsafe.Platform;

/**
 * The changes of schema evolution of a branch. Spark asks the table, which knows its branch, for each change, and then hands the same objects to
 * the catalog, in the same thread and without the branch. A release of Spark that hands over copies is refused: the table itself never gets a
 * column of a branch.
 */
final class LanceBranchChanges {
  private static final ThreadLocal LATEST = new ThreadLocal();

  private final Object table;
  private final String branch;
  private final Map changes = new IdentityHashMap();

  private LanceBranchChanges(Object table, String branch) {
    this.table = table;
    this.branch = branch;
  }

  /** Notes a change that a table takes. Changes of a table without a branch end those of an earlier statement. */
  static void note(Object table, String branch, TableChange change) {
    LanceBranchChanges latest = (LanceBranchChanges) LATEST.get();
    if (branch == null) {
      LATEST.remove();
      return;
    }
    if (latest == null || latest.table != table) {
      latest = new LanceBranchChanges(table, branch);
      LATEST.set(latest);
    }
    latest.changes.put(change, Boolean.TRUE);
  }

  /** Forgets the changes of a statement that is refused. */
  static void forget() {
    LATEST.remove();
  }

  /** Returns the branch that changes are of; null for the table itself. */
  static String branchOf(TableChange[] changes) {
    LanceBranchChanges latest = (LanceBranchChanges) LATEST.get();
    if (latest == null || changes.length == 0) return null;
    LATEST.remove();
    int known = 0;
    int added = 0;
    for (int i = 0; i < changes.length; i++) {
      if (latest.changes.containsKey(changes[i])) known++;
      if (changes[i] instanceof TableChange.AddColumn) added++;
    }
    if (known == changes.length) return latest.branch;
    if (added == 0) return null;
    String text = "lance_spark.errors.UnsupportedOperationError: Spark asked for new columns without the branch " + latest.branch
        + " that a statement names. Nothing was changed. Run an ALTER TABLE again, and add the columns of a branch with add_columns() of the table API.";
    Platform.throwException(PythonGateway.error("schema evolution", new PythonGateway.Failure("UnsupportedOperationError", text)));
    return null;
  }
}
