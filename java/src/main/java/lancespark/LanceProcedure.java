package lancespark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A procedure of `CALL lance.system.*`: lance_spark/sql/procedures/calls.py. */
final class LanceProcedure implements UnboundProcedure, BoundProcedure {
  private final AbstractLanceCatalog catalog;

  /** The answer of Python: name, description and parameters. */
  private final Json declaration;

  LanceProcedure(AbstractLanceCatalog catalog, Json declaration) {
    this.catalog = catalog;
    this.declaration = declaration;
  }

  @Override
  public String name() {
    return declaration.text("name");
  }

  @Override
  public String description() {
    return declaration.text("description");
  }

  @Override
  public BoundProcedure bind(StructType arguments) {
    return this;
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public ProcedureParameter[] parameters() {
    return declaration.objects("parameters").stream()
        .map(LanceProcedure::parameter)
        .toArray(ProcedureParameter[]::new);
  }

  private static ProcedureParameter parameter(Json declaration) {
    DataType type = DataType.fromDDL(declaration.text("type"));
    var parameter = ProcedureParameter.in(declaration.text("name"), type);
    String comment = declaration.text("comment");
    if (comment != null) parameter = parameter.comment(comment);
    if (!declaration.isTrue("required")) parameter = parameter.defaultValue("NULL");
    return parameter.build();
  }

  @Override
  public Iterator<Scan> call(InternalRow arguments) {
    List<Object> values = new ArrayList<>();
    Json names = new Json();
    for (Json parameter : declaration.objects("parameters")) {
      DataType type = DataType.fromDDL(parameter.text("type"));
      Object value = value(arguments, values.size(), type);
      boolean isTable = parameter.isTrue("is_table");
      if (isTable && value instanceof String name && !name.isEmpty()) {
        names.put(parameter.text("name"), parts(name));
      }
      values.add(value);
    }
    Json request = new Json().with("procedure", name()).with("values", values).with("names", names);
    SparkSession session = SparkSession.active();
    try {
      Scan answer = LanceAnswer.of(catalog.ask("call", null, request, session));
      return List.of(answer).iterator();
    } catch (PythonGateway.Failure failure) {
      throw Errors.thrown(Errors.ofCommand("call", failure));
    } finally {
      List<String> table = names.texts("table");
      if (!table.isEmpty()) catalog.refreshCaches(session, identifier(table));
    }
  }

  private static Object value(InternalRow arguments, int i, DataType type) {
    if (arguments.isNullAt(i)) return null;
    Object value = CatalystTypeConverters.convertToScala(arguments.get(i, type), type);
    return value instanceof scala.collection.Iterable<?> items ? Scala.list(items) : value;
  }

  /** Divides the name of a table, and leaves out the name of the catalog. */
  private List<String> parts(String name) {
    List<String> parts = LanceUnresolved.partsOf(name);
    boolean isQualified = parts.size() > 1 && parts.get(0).equals(catalog.name());
    return isQualified ? parts.subList(1, parts.size()) : parts;
  }

  private static Identifier identifier(List<String> parts) {
    int last = parts.size() - 1;
    return Identifier.of(parts.subList(0, last).toArray(new String[0]), parts.get(last));
  }
}
