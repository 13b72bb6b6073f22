package lancespark;

import java.util.List;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StructType;

/** The result rows of a procedure: texts, numbers and truth values. */
record LanceAnswer(StructType readSchema, List<?> values) implements LocalScan {
  static LanceAnswer of(Json answer) {
    return new LanceAnswer(
        (StructType) DataType.fromDDL(answer.text("schema")), answer.items("rows"));
  }

  @Override
  public InternalRow[] rows() {
    return values.stream().map(row -> row((List<?>) row)).toArray(InternalRow[]::new);
  }

  private InternalRow row(List<?> json) {
    Object[] row = json.toArray();
    for (int i = 0; i < row.length; i++) {
      boolean isLong = readSchema.fields()[i].dataType() instanceof LongType;
      if (isLong && row[i] instanceof Integer number) row[i] = number.longValue();
      row[i] = CatalystTypeConverters.convertToCatalyst(row[i]);
    }
    return new GenericInternalRow(row);
  }
}
