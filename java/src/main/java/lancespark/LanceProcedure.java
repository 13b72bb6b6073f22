package lancespark;

import java.util.ArrayList;
import java.util.Arrays;
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

/** A procedure of `CALL lance.system.*`: lance_spark/sql/procedures.py. */
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
    for (ProcedureParameter parameter : parameters()) {
      int i = values.size();
      Object value = arguments.isNullAt(i) ? null : arguments.get(i, parameter.dataType());
      values.add(CatalystTypeConverters.convertToScala(value, parameter.dataType()));
    }
    Json request = new Json().with("procedure", name()).with("values", values);
    try {
      Scan answer = LanceAnswer.of(catalog.run("call", null, request));
      return List.of(answer).iterator();
    } finally {
      Identifier table = identifier((String) values.get(0));
      if (table != null) catalog.refreshCaches(SparkSession.active(), table);
    }
  }

  /** Parses the name of a table with or without the catalog. Returns null for an empty name. */
  private Identifier identifier(String name) {
    if (name == null || name.isEmpty()) return null;
    String[] parts = name.contains("/") ? new String[] {name} : name.split("\\.", -1);
    int first = parts.length > 1 && parts[0].equals(catalog.name()) ? 1 : 0;
    int last = parts.length - 1;
    return Identifier.of(Arrays.copyOfRange(parts, first, last), parts[last]);
  }
}
