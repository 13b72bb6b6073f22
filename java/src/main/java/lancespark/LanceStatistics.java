package lancespark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Statistics;

/** Statistics of a scan for Spark's optimizer. */
record LanceStatistics(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {
  /** A negative number of rows is unknown. */
  static LanceStatistics of(long rows, long bytes) {
    // Spark multiplies sizes, and a size of 0 would make a join free.
    OptionalLong size = OptionalLong.of(Math.max(1L, bytes));
    return new LanceStatistics(size, rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows));
  }
}
