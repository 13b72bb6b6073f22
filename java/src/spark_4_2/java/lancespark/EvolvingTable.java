package lancespark;

import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;

/**
 * A table of the catalog from Spark 4.2 on. Schema evolution adds columns and never changes the
 * types of existing columns.
 */
final class EvolvingTable extends LanceTable implements SupportsSchemaEvolution {
  EvolvingTable(AbstractLanceCatalog catalog, Identifier identifier, Json opened) {
    super(catalog, identifier, opened);
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> all = new HashSet<>(super.capabilities());
    all.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    return all;
  }

  /** Ends the statement before its first change. Spark first asks for all changes. */
  @Override
  public boolean supportsColumnChange(TableChange.ColumnChange change) {
    String column = String.join(".", change.fieldNames());
    if (change instanceof TableChange.AddColumn) {
      if (change.fieldNames().length > 1) {
        throw evolutionRefusal(
            "Lance cannot add the field " + column + " to a struct",
            "Leave the field out of the source");
      }
      EvolutionChanges.note(this, branch(), change);
      return true;
    }
    if (change instanceof TableChange.UpdateColumnType update) {
      DataType source = update.newDataType();
      DataType target = typeOf(change.fieldNames());
      if (target == null || isAssignable(source, target)) return false;
      throw evolutionRefusal(
          String.format(
              "The column %s has the type %s and cannot store values of the type %s",
              column, target.sql(), source.sql()),
          "Cast the values in the source");
    }
    return false;
  }

  private DataType typeOf(String[] path) {
    var field =
        schema()
            .findNestedField(
                Scala.seqOf(path), true, SQLConf.get().resolver(), CurrentOrigin.get());
    return field.isEmpty() ? null : field.get()._2().dataType();
  }

  private static boolean isAssignable(DataType source, DataType target) {
    return switch (SQLConf.get().storeAssignmentPolicy().toString()) {
      case "ANSI" -> Cast.canANSIStoreAssign(source, target);
      case "STRICT" -> Cast.canUpCast(source, target);
      default -> Cast.canCast(source, target);
    };
  }

  private RuntimeException evolutionRefusal(String what, String remedy) {
    EvolutionChanges.forget();
    String effect = "Schema evolution of " + name() + " changed nothing";
    return Errors.thrown(
        Errors.unsupported("schema evolution", what + ". " + effect + ". " + remedy + "."));
  }
}
