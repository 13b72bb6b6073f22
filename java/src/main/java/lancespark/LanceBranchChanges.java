package lancespark;

import java.util.IdentityHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableChange;

/**
 * The changes of schema evolution of a branch. Spark asks the table, which knows its branch, for each change, and then hands the same objects to
 * the catalog, in the same thread and without the branch.
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

  /** Notes a change that a table of a branch takes. */
  static void note(Object table, String branch, TableChange change) {
    LanceBranchChanges latest = (LanceBranchChanges) LATEST.get();
    if (latest == null || latest.table != table) {
      latest = new LanceBranchChanges(table, branch);
      LATEST.set(latest);
    }
    latest.changes.put(change, Boolean.TRUE);
  }

  /** Returns the branch that changes are of; null for the table itself. */
  static String branchOf(TableChange[] changes) {
    LanceBranchChanges latest = (LanceBranchChanges) LATEST.get();
    if (latest == null || changes.length == 0) return null;
    int known = 0;
    for (int i = 0; i < changes.length; i++) {
      if (latest.changes.containsKey(changes[i])) known++;
    }
    if (known == 0) return null;
    if (known < changes.length) throw new IllegalStateException("changes of a branch and of the table itself come together");
    LATEST.remove();
    return latest.branch;
  }
}
