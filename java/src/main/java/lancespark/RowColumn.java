package lancespark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;

/** A column that each row has, and that a query gets only where it is named. */
final class RowColumn implements MetadataColumn {
  private final Map field;

  RowColumn(Map field) {
    this.field = field;
  }

  public String name() {
    return (String) field.get("name");
  }

  public DataType dataType() {
    return LongType$.MODULE$;
  }

  public boolean isNullable() {
    return false;
  }

  public String comment() {
    return (String) field.get("comment");
  }

  public String metadataInJSON() {
    return (String) field.get("metadata");
  }
}
