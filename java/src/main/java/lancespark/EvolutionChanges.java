package lancespark;

import java.util.Arrays;
import java.util.IdentityHashMap;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableChange;

/**
 * The changes of schema evolution by a statement. Spark first asks the table of the statement for
 * each change. Then Spark passes the same objects to the catalog, in the same thread and without
 * the branch of the statement. Last, Spark loads the table again for the write.
 */
final class EvolutionChanges {
  private static final ThreadLocal<EvolutionChanges> LATEST = new ThreadLocal<>();
  private static final ThreadLocal<Added> ADDED = new ThreadLocal<>();

  /** Columns added to the table of a statement by its evolution. */
  private record Added(AbstractLanceCatalog catalog, Identifier table, Json columns) {}

  private final Object table;

  /** The branch, or null for the main branch. */
  final String branch;

  private final IdentityHashMap<TableChange, Boolean> changes = new IdentityHashMap<>();

  private EvolutionChanges(Object table, String branch) {
    this.table = table;
    this.branch = branch;
  }

  /** Notes a change of a table. Another table ends the changes of an earlier statement. */
  static void note(Object table, String branch, TableChange change) {
    EvolutionChanges latest = LATEST.get();
    if (latest == null || latest.table != table) {
      latest = new EvolutionChanges(table, branch);
      LATEST.set(latest);
    }
    latest.changes.put(change, true);
  }

  /** Forgets the changes of a refused statement. */
  static void forget() {
    LATEST.remove();
  }

  /**
   * Returns the evolution with these changes, or null for ALTER TABLE. Copies of the changes of a
   * branch are an error, so the main branch never gets a column of another branch.
   */
  static EvolutionChanges take(TableChange[] changes) {
    EvolutionChanges latest = LATEST.get();
    if (latest == null || changes.length == 0) return null;
    LATEST.remove();
    if (Arrays.stream(changes).allMatch(latest.changes::containsKey)) return latest;
    boolean adds = Arrays.stream(changes).anyMatch(TableChange.AddColumn.class::isInstance);
    if (latest.branch == null || !adds) return null;
    throw Errors.thrown(
        Errors.unsupported(
            "schema evolution",
            "Spark asked for new columns without the branch "
                + latest.branch
                + " that a statement names. Nothing was changed. Run an ALTER TABLE again, and add"
                + " the columns of a branch with add_columns() of the table API."));
  }

  /** Notes Python's answer to the command `alter_table` for the next load of the table. */
  void noteAdded(AbstractLanceCatalog catalog, Identifier identifier, Json altered) {
    ADDED.set(new Added(catalog, identifier, altered.with("branch", branch)));
  }

  /** Returns the columns added to a table right before this load, or null. */
  static Json takeAdded(AbstractLanceCatalog catalog, Identifier identifier) {
    Added added = ADDED.get();
    ADDED.remove();
    boolean matches = added != null && added.catalog == catalog && added.table.equals(identifier);
    return matches ? added.columns : null;
  }
}
