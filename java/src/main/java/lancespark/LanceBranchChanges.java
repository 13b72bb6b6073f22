package lancespark;

import java.util.Arrays;
import java.util.IdentityHashMap;
import org.apache.spark.sql.connector.catalog.TableChange;

/**
 * The changes of schema evolution of a branch. Spark first asks the table of the branch for each
 * change. Then Spark passes the same objects to the catalog, in the same thread and without the
 * branch. Copies of the objects are an error, so the main branch never gets a column of another
 * branch.
 */
final class LanceBranchChanges {
  private static final ThreadLocal<LanceBranchChanges> LATEST = new ThreadLocal<>();

  private final Object table;
  private final String branch;
  private final IdentityHashMap<TableChange, Boolean> changes = new IdentityHashMap<>();

  private LanceBranchChanges(Object table, String branch) {
    this.table = table;
    this.branch = branch;
  }

  /**
   * Notes a change of a table. A change of the main branch ends the changes of an earlier
   * statement.
   */
  static void note(Object table, String branch, TableChange change) {
    LanceBranchChanges latest = LATEST.get();
    if (branch == null) {
      LATEST.remove();
      return;
    }
    if (latest == null || latest.table != table) {
      latest = new LanceBranchChanges(table, branch);
      LATEST.set(latest);
    }
    latest.changes.put(change, true);
  }

  /** Forgets the changes of a refused statement. */
  static void forget() {
    LATEST.remove();
  }

  /** Returns the branch of changes, or null for the main branch. */
  static String branchOf(TableChange[] changes) {
    LanceBranchChanges latest = LATEST.get();
    if (latest == null || changes.length == 0) return null;
    LATEST.remove();
    if (Arrays.stream(changes).allMatch(latest.changes::containsKey)) return latest.branch;
    if (Arrays.stream(changes).noneMatch(TableChange.AddColumn.class::isInstance)) return null;
    throw Errors.thrown(
        Errors.unsupported(
            "schema evolution",
            "Spark asked for new columns without the branch "
                + latest.branch
                + " that a statement names. Nothing was changed. Run an ALTER TABLE again, and add"
                + " the columns of a branch with add_columns() of the table API."));
  }
}
