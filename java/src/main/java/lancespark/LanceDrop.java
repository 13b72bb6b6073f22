package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.plans.logical.DropTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.Identifier;
import scala.collection.immutable.Seq;

/** DROP TABLE of a table that a killed drop left without versions. Spark drops only what exists, and CREATE TABLE reuses the folder. */
public final class LanceDrop extends LanceCommand {
  private final AbstractLanceCatalog catalog;
  private final Identifier identifier;

  /** Also what Spark makes copies with. */
  public LanceDrop(AbstractLanceCatalog catalog, Identifier identifier) {
    super(new ArrayList());
    this.catalog = catalog;
    this.identifier = identifier;
  }

  /** The command for a half-dropped table of the catalog; the plan itself for every other table. */
  static LogicalPlan of(DropTable plan) {
    if (!(plan.child() instanceof ResolvedIdentifier)) return plan;
    ResolvedIdentifier named = (ResolvedIdentifier) plan.child();
    if (!(named.catalog() instanceof AbstractLanceCatalog)) return plan;
    AbstractLanceCatalog catalog = (AbstractLanceCatalog) named.catalog();
    boolean isHalfDropped = Boolean.TRUE.equals(catalog.run("is_half_dropped", named.identifier(), new HashMap()).get("answer"));
    return isHalfDropped ? new LanceDrop(catalog, named.identifier()) : plan;
  }

  public Seq run(SparkSession session) {
    catalog.dropTable(identifier);
    return Reflection.seq(new ArrayList());
  }

  public String nodeName() {
    return "Lance drop";
  }

  public String simpleString(int maxFields) {
    return nodeName() + " of what is left of " + AbstractLanceCatalog.quoted(identifier);
  }

  public int productArity() {
    return 2;
  }

  public Object productElement(int n) {
    return new Object[] {catalog, identifier}[n];
  }

  public boolean canEqual(Object other) {
    return other instanceof LanceDrop;
  }
}
