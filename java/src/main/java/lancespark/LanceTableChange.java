package lancespark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableChange;

/** A clause of ALTER TABLE as a map, for Python. */
final class LanceTableChange {
  private LanceTableChange() {}

  static Map described(TableChange change) {
    Map all = new HashMap();
    all.put("kind", change.getClass().getSimpleName());
    if (change instanceof TableChange.SetProperty) {
      all.put("property", ((TableChange.SetProperty) change).property());
      all.put("value", ((TableChange.SetProperty) change).value());
    } else if (change instanceof TableChange.RemoveProperty) {
      all.put("property", ((TableChange.RemoveProperty) change).property());
    } else if (change instanceof TableChange.ColumnChange) {
      all.put("column", ((TableChange.ColumnChange) change).fieldNames());
    }
    if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn added = (TableChange.AddColumn) change;
      all.put("type", added.dataType().json());
      all.put("nullable", Boolean.valueOf(added.isNullable()));
      all.put("comment", added.comment());
      all.put("position", added.position() == null ? null : added.position().toString());
      all.put("default", added.defaultValue() == null ? null : added.defaultValue().toString());
    } else if (change instanceof TableChange.RenameColumn) {
      all.put("name", ((TableChange.RenameColumn) change).newName());
    } else if (change instanceof TableChange.UpdateColumnType) {
      all.put("type", ((TableChange.UpdateColumnType) change).newDataType().json());
    } else if (change instanceof TableChange.UpdateColumnNullability) {
      all.put("nullable", Boolean.valueOf(((TableChange.UpdateColumnNullability) change).nullable()));
    } else if (change instanceof TableChange.UpdateColumnComment) {
      all.put("comment", ((TableChange.UpdateColumnComment) change).newComment());
    } else if (change instanceof TableChange.DeleteColumn) {
      all.put("if_exists", ((TableChange.DeleteColumn) change).ifExists());
    }
    return all;
  }
}
