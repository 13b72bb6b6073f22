package lancespark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A procedure of `CALL lance.system.*`: lance_spark/sql/procedures.py. */
final class LanceProcedure implements UnboundProcedure, BoundProcedure {
  private final AbstractLanceCatalog catalog;
  private final Map described;

  LanceProcedure(AbstractLanceCatalog catalog, Map described) {
    this.catalog = catalog;
    this.described = described;
  }

  public String name() {
    return (String) described.get("name");
  }

  public String description() {
    return (String) described.get("description");
  }

  public BoundProcedure bind(StructType arguments) {
    return this;
  }

  public boolean isDeterministic() {
    return false;
  }

  public ProcedureParameter[] parameters() {
    List given = (List) described.get("parameters");
    ProcedureParameter[] parameters = new ProcedureParameter[given.size()];
    for (int i = 0; i < parameters.length; i++) {
      Map one = (Map) given.get(i);
      ProcedureParameter.Builder made = ProcedureParameter.in((String) one.get("name"), DataType.fromDDL((String) one.get("type")));
      if (one.get("comment") != null) made = made.comment((String) one.get("comment"));
      if (!Boolean.TRUE.equals(one.get("required"))) made = made.defaultValue("NULL");
      parameters[i] = made.build();
    }
    return parameters;
  }

  public Iterator call(InternalRow given) {
    List values = new ArrayList();
    ProcedureParameter[] parameters = parameters();
    for (int i = 0; i < parameters.length; i++) {
      Object value = given.isNullAt(i) ? null : given.get(i, parameters[i].dataType());
      values.add(CatalystTypeConverters.convertToScala(value, parameters[i].dataType()));
    }
    Map arguments = new HashMap();
    arguments.put("procedure", name());
    arguments.put("values", values);
    List scans = new ArrayList();
    try {
      scans.add(new LanceAnswer(catalog.run("call", null, arguments)));
    } finally {
      Identifier table = named((String) values.get(0));
      if (table != null) catalog.refreshCaches(org.apache.spark.sql.classic.SparkSession.active(), table);
    }
    return scans.iterator();
  }

  /** The table that is named as one text, without the catalog or with it; null where there is no name. */
  private Identifier named(String text) {
    if (text == null || text.isEmpty()) return null;
    String[] parts = text.indexOf('/') >= 0 ? new String[] {text} : text.split("\\.", -1);
    int from = parts.length > 1 && parts[0].equals(catalog.name()) ? 1 : 0;
    return Identifier.of((String[]) Arrays.copyOfRange(parts, from, parts.length - 1), parts[parts.length - 1]);
  }
}
