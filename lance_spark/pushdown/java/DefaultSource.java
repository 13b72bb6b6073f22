package lance;

import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;

/**
 * Spark's own Python data source, under the name by which Spark finds a format in any thread. A Python data source it looks up in the
 * session that is active in the thread, and a new thread has none.
 */
public final class DefaultSource extends PythonDataSourceV2 {}
