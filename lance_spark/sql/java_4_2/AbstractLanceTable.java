package lancespark;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.Tuple2;

/** A table of the catalog from Spark 4.2 on. Schema evolution adds columns and keeps the types of existing columns. */
abstract class AbstractLanceTable extends PythonTable implements SupportsSchemaEvolution {
  /** Whether the release lets the table choose the changes of schema evolution. */
  static final boolean EVOLVES = true;

  AbstractLanceTable(PythonDataSourceV2 source, String name, StructType schema) {
    super(source, name, schema);
  }

  /** Spark asks for every change before it makes any, so a change that cannot work ends the statement here. */
  public boolean supportsColumnChange(TableChange.ColumnChange change) {
    if (branch() != null) throw refused("Spark would add the columns to the table, and not to the branch " + branch(), LanceUnresolved.ON_BRANCH);
    String column = String.join(".", change.fieldNames());
    if (change instanceof TableChange.AddColumn) {
      if (change.fieldNames().length > 1) throw refused("Lance cannot add the field " + column + " to a struct", "Leave the field out of the source");
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

  /** The branch of the table that a statement changes; null for the table itself. */
  abstract String branch();

  private static boolean isAssignable(DataType source, DataType target) {
    String policy = SQLConf.get().storeAssignmentPolicy().toString();
    if (policy.equals("ANSI")) return Cast.canANSIStoreAssign(source, target);
    return policy.equals("STRICT") ? Cast.canUpCast(source, target) : Cast.canCast(source, target);
  }

  private RuntimeException refused(String what, String remedy) {
    String text = "lance_spark.errors.UnsupportedOperationError: " + what + ". Schema evolution of " + name() + " changed nothing. " + remedy + ".";
    Platform.throwException(LancePython.error("schema evolution", new LancePython.Failure("UnsupportedOperationError", text)));
    return null;
  }
}
