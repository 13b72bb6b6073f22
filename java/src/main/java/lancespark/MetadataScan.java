package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A scan of a table about a table. Each version of `t.versions` is three requests to the store, so
 * Python lists only the columns of the query, and as many rows as the query shows. Spark sorts and
 * limits the rows again.
 */
final class MetadataScan
    implements SupportsPushDownRequiredColumns, SupportsPushDownLimit, SupportsPushDownTopN {
  private static final String REQUEST = "lancespark.metadata";

  private final Map<String, String> options;
  private StructType columns;
  private String rows = "";

  MetadataScan(Map<String, String> options, StructType stored) {
    this.options = options;
    this.columns = stored;
  }

  @Override
  public void pruneColumns(StructType required) {
    // `count(*)` needs no column, and the first column is the cheapest.
    columns = required.length() > 0 ? required : new StructType().add(columns.fields()[0]);
  }

  @Override
  public boolean pushLimit(int limit) {
    rows = " " + limit;
    return true;
  }

  @Override
  public boolean pushTopN(SortOrder[] orders, int limit) {
    if (!"versions".equals(options.get(REQUEST)) || orders.length != 1) return false;
    if (!(orders[0].expression() instanceof NamedReference column)) return false;
    if (column.fieldNames().length != 1 || !"version".equals(column.fieldNames()[0])) return false;
    boolean descends = orders[0].direction() == SortDirection.DESCENDING;
    rows = " " + limit + (descends ? " newest" : "");
    return true;
  }

  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public Scan build() {
    Map<String, String> all = new HashMap<>(options);
    all.put(REQUEST, options.get(REQUEST) + rows);
    return GatewaySource.at(null).scan(columns, new CaseInsensitiveStringMap(all));
  }
}
