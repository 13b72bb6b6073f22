package lancespark;

import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;

/** A table of the catalog before Spark 4.2, where a table cannot refuse single changes of schema evolution. */
abstract class AbstractLanceTable extends PythonTable {
  /** Whether the release lets the table choose the changes of schema evolution. */
  static final boolean EVOLVES = false;

  AbstractLanceTable(PythonDataSourceV2 source, String name, StructType schema) {
    super(source, name, schema);
  }
}
