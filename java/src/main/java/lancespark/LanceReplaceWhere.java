package lancespark;

import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.BatchWrite;

/** What stays in the plan where no rule replaces it. */
final class LanceReplaceWhere implements Write {
  public BatchWrite toBatch() {
    throw new UnsupportedOperationException("an overwrite of some rows of a Lance table needs lance_spark.enable_pushdown(spark), which is not"
        + " active in this session - nothing was changed");
  }
}
