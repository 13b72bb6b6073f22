package lancespark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.*;

final class LanceStatistics implements Statistics {
  private final long rows;
  private final long bytes;

  LanceStatistics(long rows, long bytes) {
    this.rows = rows;
    this.bytes = bytes;
  }

  public OptionalLong sizeInBytes() {
    // Spark multiplies sizes, and takes 0 for "costs nothing".
    return OptionalLong.of(Math.max(1L, bytes));
  }

  public OptionalLong numRows() {
    return rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows);
  }
}
