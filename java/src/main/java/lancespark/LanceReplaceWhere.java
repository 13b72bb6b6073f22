package lancespark;

import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.Write;

/** INSERT INTO .. REPLACE WHERE until the planner rule replaces the plan. */
final class LanceReplaceWhere implements Write {
  @Override
  public BatchWrite toBatch() {
    throw LanceNoWrite.refusal("an overwrite of some rows");
  }
}
