package lancespark;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** The rows that a procedure answers: texts, numbers and truth values. */
final class LanceAnswer implements LocalScan {
  private final StructType schema;
  private final List rows;

  LanceAnswer(Map answer) {
    this.schema = (StructType) DataType.fromDDL((String) answer.get("schema"));
    this.rows = (List) answer.get("rows");
  }

  public StructType readSchema() {
    return schema;
  }

  public InternalRow[] rows() {
    InternalRow[] made = new InternalRow[rows.size()];
    for (int i = 0; i < made.length; i++) {
      List row = (List) rows.get(i);
      Object[] values = new Object[row.size()];
      for (int c = 0; c < values.length; c++) {
        Object value = row.get(c);
        boolean wide = value instanceof Integer && schema.fields()[c].dataType().typeName().equals("long");
        if (wide) value = Long.valueOf(((Integer) value).longValue());
        values[c] = CatalystTypeConverters.convertToCatalyst(value);
      }
      made[i] = new GenericInternalRow(values);
    }
    return made;
  }
}
