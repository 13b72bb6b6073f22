package lancespark;

import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;

/** A column of every row, such as `_rowid`. A query reads the column only by its name. */
record RowColumn(String name, String comment, String metadataInJSON) implements MetadataColumn {
  static RowColumn of(Json field) {
    return new RowColumn(field.text("name"), field.text("comment"), field.text("metadata"));
  }

  @Override
  public DataType dataType() {
    return LongType$.MODULE$;
  }

  @Override
  public boolean isNullable() {
    return false;
  }
}
