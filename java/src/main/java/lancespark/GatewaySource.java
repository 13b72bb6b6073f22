package lancespark;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.zip.InflaterInputStream;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.python.*;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Spark's Python data source with reads and writes from {@link PythonGateway}. Spark calls this
 * class for the columns of a table by path, for the partitions of a read, and for the plan and the
 * commit of a write.
 */
public class GatewaySource extends PythonDataSourceV2 {
  /** JSON of the table and its version; null if the options of a read name the version. */
  private String pin;

  /** The partitions of a planned scan; null if Python plans when the query runs. */
  private PythonDataSourceReadInfo partitions;

  /** Facts of the planner rule about a write: {@link LanceWrites}. Null without the rule. */
  private Json write;

  /** Id of the streaming query of a write; null for other writes. */
  private String query;

  /** Whether the output mode of the query is `update`. */
  private boolean updates;

  private GatewayWrites planner;

  protected GatewaySource() {}

  /** Returns a source for a table at a version, or at the version of its options. */
  static GatewaySource at(String pin) {
    GatewaySource source = new GatewaySource();
    source.setShortName(LanceSource.NAME);
    source.pin = pin;
    return source;
  }

  /** Returns a source for a write known to the planner rule. */
  static GatewaySource writing(Json write) {
    GatewaySource source = at(null);
    source.write = write;
    return source;
  }

  /** Returns a source for the writes of a streaming query. */
  static GatewaySource streaming(String query, boolean updates) {
    GatewaySource source = at(null);
    source.query = query;
    source.updates = updates;
    return source;
  }

  /** Returns the scan of an answer to `plan_scan`. */
  static Scan scan(Json answer) {
    GatewaySource source = at(answer.text("pin"));
    source.partitions = partitions(answer);
    StructType schema = (StructType) DataType.fromJson(answer.text("schema"));
    return source.scan(schema, CaseInsensitiveStringMap.empty());
  }

  /** Returns a scan of columns. Python plans the scan when the query runs. */
  final PythonScan scan(StructType columns, CaseInsensitiveStringMap options) {
    return new PythonScan(this, LanceSource.NAME, columns, options, new Filter[0]);
  }

  /** Tells whether the planner rule has seen the write of this source. */
  final boolean isPlannedWrite() {
    return write != null;
  }

  /**
   * Returns the object that Spark asks for the plan and the commit of a write. Only streams need
   * the class of the Python data source, which Spark looks up in a Python process.
   */
  @Override
  public UserDefinedPythonDataSource source() {
    return writes();
  }

  synchronized GatewayWrites writes() {
    if (planner == null) planner = new GatewayWrites(write, query, updates, super::source);
    return planner;
  }

  /** Returns the version from {@link #inferSchema}, or null. */
  final String pin() {
    return pin;
  }

  /** Pins the version of a table by path, and returns its columns. */
  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    Json arguments = new Json().with("options", options.asCaseSensitiveMap());
    Json opened = LanceSource.ask("open_path", arguments);
    pin = opened.text("pin");
    return (StructType) DataType.fromJson(opened.text("schema"));
  }

  @Override
  public PythonDataSourceReadInfo getOrCreateReadInfo(
      String shortName, CaseInsensitiveStringMap options, StructType columns, boolean isStream) {
    if (isStream) return super.getOrCreateReadInfo(shortName, options, columns, true);
    if (partitions != null) return partitions;
    Json arguments =
        new Json()
            .with("options", options.asCaseSensitiveMap())
            .with("schema", columns.json())
            .with("pin", pin)
            .with("slots", LanceSource.slots());
    return partitions(LanceSource.ask("plan_read", arguments));
  }

  /** Decodes partitions: lance_spark/read/planning/spark_read_info.py. */
  private static PythonDataSourceReadInfo partitions(Json answer) {
    byte[] bytes = Base64.getDecoder().decode(answer.text("read"));
    InputStream inflated = new InflaterInputStream(new java.io.ByteArrayInputStream(bytes));
    try (DataInputStream input = new DataInputStream(inflated)) {
      byte[] function = next(input);
      List<byte[]> partitions = new ArrayList<>();
      for (int n = input.readInt(); n > 0; n--) partitions.add(next(input));
      return new PythonDataSourceReadInfo(function, Scala.seq(partitions));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static byte[] next(DataInputStream input) throws IOException {
    return input.readNBytes(input.readInt());
  }
}
