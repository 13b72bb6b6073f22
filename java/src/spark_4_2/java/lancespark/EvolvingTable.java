package lancespark;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.Tuple2;

/** A table of the catalog from Spark 4.2 on. Schema evolution adds columns and keeps the types of existing columns. */
final class EvolvingTable extends LanceTable implements SupportsSchemaEvolution {
  EvolvingTable(AbstractLanceCatalog catalog, Identifier identifier, Map opened) {
    super(catalog, identifier, opened);
  }

  @Override
  public Set capabilities() {
    Set all = new HashSet(super.capabilities());
    all.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    return all;
  }

  /** Spark asks for every change before it makes any, so a change that cannot work ends the statement here. */
  public boolean supportsColumnChange(TableChange.ColumnChange change) {
    String column = String.join(".", change.fieldNames());
    if (change instanceof TableChange.AddColumn) {
      if (change.fieldNames().length > 1) throw refused("Lance cannot add the field " + column + " to a struct", "Leave the field out of the source");
      LanceBranchChanges.note(this, branch(), change);
      return true;
    }
    if (change instanceof TableChange.UpdateColumnType) {
      DataType source = ((TableChange.UpdateColumnType) change).newDataType();
      Option found = schema().findNestedField(Reflection.seq(Arrays.asList(change.fieldNames())), true, SQLConf.get().resolver(), CurrentOrigin.get());
      DataType target = found.isEmpty() ? null : ((StructField) ((Tuple2) found.get())._2()).dataType();
      if (target == null || isAssignable(source, target)) return false;
      String what = "The column " + column + " has the type " + target.sql() + " and cannot store values of the type " + source.sql();
      throw refused(what, "Cast the values in the source");
    }
    return false;
  }

  private static boolean isAssignable(DataType source, DataType target) {
    String policy = SQLConf.get().storeAssignmentPolicy().toString();
    if (policy.equals("ANSI")) return Cast.canANSIStoreAssign(source, target);
    return policy.equals("STRICT") ? Cast.canUpCast(source, target) : Cast.canCast(source, target);
  }

  private RuntimeException refused(String what, String remedy) {
    LanceBranchChanges.forget();
    String text = "lance_spark.errors.UnsupportedOperationError: " + what + ". Schema evolution of " + name() + " changed nothing. " + remedy + ".";
    Platform.throwException(PythonGateway.error("schema evolution", new PythonGateway.Failure("UnsupportedOperationError", text)));
    return null;
  }
}
