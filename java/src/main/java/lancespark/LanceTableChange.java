package lancespark;

import org.apache.spark.sql.connector.catalog.TableChange;

/** A clause of ALTER TABLE as JSON for Python: lance_spark/sql/catalog/tables.py. */
final class LanceTableChange {
  private LanceTableChange() {}

  static Json describe(TableChange change) {
    Json json = new Json().with("kind", change.getClass().getSimpleName());
    if (change instanceof TableChange.SetProperty set) {
      return json.with("property", set.property()).with("value", set.value());
    }
    if (change instanceof TableChange.RemoveProperty remove) {
      return json.with("property", remove.property());
    }
    if (change instanceof TableChange.ColumnChange ofColumn) {
      json.put("column", ofColumn.fieldNames());
    }
    if (change instanceof TableChange.AddColumn add) {
      return json.with("type", add.dataType().json())
          .with("nullable", add.isNullable())
          .with("comment", add.comment())
          .with("position", textOf(add.position()))
          .with("default", textOf(add.defaultValue()));
    }
    if (change instanceof TableChange.RenameColumn rename) {
      return json.with("name", rename.newName());
    }
    if (change instanceof TableChange.UpdateColumnType update) {
      return json.with("type", update.newDataType().json());
    }
    if (change instanceof TableChange.UpdateColumnNullability update) {
      return json.with("nullable", update.nullable());
    }
    if (change instanceof TableChange.UpdateColumnComment update) {
      return json.with("comment", update.newComment());
    }
    if (change instanceof TableChange.DeleteColumn delete) {
      return json.with("if_exists", delete.ifExists());
    }
    return json;
  }

  private static String textOf(Object value) {
    return value == null ? null : value.toString();
  }
}
