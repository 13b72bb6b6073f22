package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.internal.SQLConf;
import scala.Tuple2;

/**
 * Options of catalogs by their origin: the application's SparkConf, the driver's program, which registers catalogs here, and the session, where any
 * SQL user may SET them. Python compares the three and uses only the first two: lance_spark/session/catalogs.py.
 *
 * The method that registers is an instance method, because `reflect` of Spark SQL calls static ones.
 */
public final class LanceRegistry {
  private static final String PREFIX = "spark.sql.catalog.";
  private static final String REDACTION = "spark.redaction.regex";

  /** By SparkContext: maps of options by the name of the catalog. */
  private static final WeakHashMap REGISTERED = new WeakHashMap();

  /** Registers a catalog for the application. */
  public void register(String name, Map options) {
    synchronized (REGISTERED) {
      Map catalogs = (Map) REGISTERED.get(SparkContext.getOrCreate());
      if (catalogs == null) {
        catalogs = new HashMap();
        REGISTERED.put(SparkContext.getOrCreate(), catalogs);
      }
      catalogs.put(name, new HashMap(options));
    }
  }

  /** The origins of a catalog's options, as JSON. */
  public String describe(String name) throws Exception {
    return LanceSource.JSON.writeValueAsString(origins(name));
  }

  /** Returns `application` and `registered`, null for a catalog that this origin lacks, `session`, and `shown`: options that SET and the UI show. */
  static Map origins(String name) {
    SparkConf conf = SparkContext.getOrCreate().getConf();
    boolean declared = LanceCatalog.class.getName().equals(conf.get(PREFIX + name, ""));
    Map application = declared ? below(conf, PREFIX + name + ".") : null;
    Map origins = new LinkedHashMap();
    origins.put("application", application);
    origins.put("registered", registered(name));
    origins.put("session", below(Reflection.map(SQLConf.get().getAllConfs()), PREFIX + name + "."));
    origins.put("redaction", conf.get(REDACTION, null));
    origins.put("shown", declared ? shown(application.keySet().iterator(), name, conf.get(REDACTION, "^$")) : new ArrayList());
    return origins;
  }

  private static Map registered(String name) {
    synchronized (REGISTERED) {
      Map catalogs = (Map) REGISTERED.get(SparkContext.getOrCreate());
      return catalogs == null ? null : (Map) catalogs.get(name);
    }
  }

  private static Map below(SparkConf conf, String prefix) {
    Map options = new HashMap();
    Tuple2[] pairs = conf.getAllWithPrefix(prefix);
    for (int i = 0; i < pairs.length; i++) options.put(pairs[i]._1(), pairs[i]._2());
    return options;
  }

  private static Map below(Map settings, String prefix) {
    Map options = new HashMap();
    Iterator entries = settings.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String key = (String) entry.getKey();
      if (key.startsWith(prefix)) options.put(key.substring(prefix.length()), entry.getValue());
    }
    return options;
  }

  /** Options of the store whose names the pattern of the application does not redact. */
  private static List shown(Iterator keys, String name, String redaction) {
    List shown = new ArrayList();
    Pattern pattern = Pattern.compile(redaction);
    while (keys.hasNext()) {
      String key = (String) keys.next();
      boolean ofStore = key.startsWith("storage.") || key.startsWith("headers.");
      if (ofStore && !pattern.matcher(PREFIX + name + "." + key).find()) shown.add(key);
    }
    return shown;
  }
}
