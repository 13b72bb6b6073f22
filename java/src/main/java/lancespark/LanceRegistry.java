package lancespark;

import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.internal.SQLConf;
import scala.Tuple2;

/**
 * Options of catalogs by their origin: the SparkConf of the application, registrations by the
 * driver's program, and the session. Any SQL user may SET options of the session, so Python
 * compares the origins and uses only the first two: lance_spark/session/catalogs.py.
 *
 * <p>Registration is an instance method, because `reflect` of Spark SQL calls static methods.
 */
public final class LanceRegistry {
  private static final String PREFIX = "spark.sql.catalog.";
  private static final String REDACTION = "spark.redaction.regex";

  /** Classes of catalogs of this package. */
  private static final List<String> CLASSES =
      List.of(LanceCatalog.class.getName(), LanceSessionCatalog.class.getName());

  /** Prefixes of options with secrets. */
  private static final List<String> SECRETS =
      List.of("storage.", "headers.", "dynamic_context_provider.");

  /** Options by the name of the catalog, for each SparkContext. */
  private static final Map<SparkContext, Map<String, Map<String, String>>> REGISTERED =
      new WeakHashMap<>();

  /** Registers a catalog for the application. */
  public void register(String name, Map<String, String> options) {
    synchronized (REGISTERED) {
      REGISTERED
          .computeIfAbsent(SparkContext.getOrCreate(), context -> new HashMap<>())
          .put(name, new HashMap<>(options));
    }
  }

  /** Returns the origins of a catalog's options, as JSON text. */
  public String describe(String name) {
    return Json.write(origins(name));
  }

  /**
   * Returns `application` and `registered`, with null for an absent catalog, `session`, and
   * `shown`: the options shown by SET and the UI.
   */
  static Json origins(String name) {
    String prefix = PREFIX + name + ".";
    SparkConf conf = SparkContext.getOrCreate().getConf();
    boolean isDeclared = CLASSES.contains(conf.get(PREFIX + name, ""));
    Map<String, String> application = isDeclared ? optionsOf(conf, prefix) : null;
    String redaction = conf.get(REDACTION, "^$");
    return new Json()
        .with("application", application)
        .with("registered", registered(name))
        .with("session", withPrefix(Scala.map(SQLConf.get().getAllConfs()), prefix))
        .with("redaction", conf.get(REDACTION, null))
        .with("shown", isDeclared ? shown(application.keySet(), prefix, redaction) : List.of());
  }

  private static Map<String, String> registered(String name) {
    synchronized (REGISTERED) {
      return REGISTERED.getOrDefault(SparkContext.getOrCreate(), Map.of()).get(name);
    }
  }

  private static Map<String, String> optionsOf(SparkConf conf, String prefix) {
    Map<String, String> options = new HashMap<>();
    for (Tuple2<String, String> pair : conf.getAllWithPrefix(prefix)) {
      options.put(pair._1(), pair._2());
    }
    return options;
  }

  private static Map<String, String> withPrefix(Map<String, String> settings, String prefix) {
    Map<String, String> options = new HashMap<>();
    settings.forEach(
        (key, value) -> {
          if (key.startsWith(prefix)) options.put(key.substring(prefix.length()), value);
        });
    return options;
  }

  /** Returns the options of the store outside the application's redaction. */
  private static List<String> shown(Collection<String> keys, String prefix, String redaction) {
    Pattern pattern = Pattern.compile(redaction);
    return keys.stream()
        .filter(key -> SECRETS.stream().anyMatch(key::startsWith))
        .filter(key -> !pattern.matcher(prefix + key).find())
        .toList();
  }
}
