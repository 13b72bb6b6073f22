package lancespark;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.plans.logical.DropTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.Identifier;
import scala.collection.immutable.Seq;

/**
 * DROP TABLE of a table without versions, the rest of a killed drop. Spark drops only existing
 * tables, and CREATE TABLE reuses the folder.
 */
public final class LanceDrop extends LanceCommand {
  private final AbstractLanceCatalog catalog;
  private final Identifier identifier;

  /** Spark makes copies with this constructor. */
  public LanceDrop(AbstractLanceCatalog catalog, Identifier identifier) {
    super(List.of());
    this.catalog = catalog;
    this.identifier = identifier;
  }

  /** Returns the command for a half-dropped table of the catalog, or else the plan itself. */
  static LogicalPlan of(DropTable plan) {
    if (!(plan.child() instanceof ResolvedIdentifier target)) return plan;
    if (!(target.catalog() instanceof AbstractLanceCatalog catalog)) return plan;
    Identifier identifier = target.identifier();
    boolean isHalfDropped = catalog.run("is_half_dropped", identifier, Map.of()).isTrue("answer");
    return isHalfDropped ? new LanceDrop(catalog, identifier) : plan;
  }

  @Override
  public Seq<Row> run(SparkSession session) {
    catalog.dropTable(identifier);
    return Scala.seqOf();
  }

  @Override
  public String nodeName() {
    return "Lance drop";
  }

  @Override
  public String simpleString(int maxFields) {
    return nodeName() + " of what is left of " + AbstractLanceCatalog.dotted(identifier);
  }

  @Override
  Object[] elements() {
    return new Object[] {catalog, identifier};
  }
}
