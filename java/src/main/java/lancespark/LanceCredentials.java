package lancespark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.unsafe.Platform;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Options of object stores that a statement names. They are never mixed with the credentials of a catalog or of the driver's environment: an endpoint
 * or a proxy in a statement would receive these. The same rule for table functions: lance_spark/read/search/functions.py.
 */
public final class LanceCredentials {
  private static final String PREFIX = "storage.";
  /** How Spark begins the names of OPTIONS of CREATE TABLE, which it hands over a second time. */
  private static final String CREATED = "option.";
  /** Options that neither name a receiver nor weaken a connection. */
  private static final Pattern PLAIN = Pattern.compile("(aws_)?(default_)?region|((connect|request)_)?timeout|client_(max_retries|retry_timeout)");
  private static final Pattern PLAIN_VALUE = Pattern.compile("[\\w -]*");
  /** Variables of the environment that Lance reads as credentials, in lower case. */
  private static final Pattern TOKEN_OF_S3 = Pattern.compile("(aws_)?(session_)?token");
  private static final Pattern OF_ENVIRONMENT = Pattern.compile("(azure|google|gcs|gcp)_.*(key|secret|token|sas|credential|service_account).*"
      + "|(account|access|master|sas)_key|((sas|bearer)_)?token|client_secret|federated_token_file|service_account(_path|_key)?|application_credentials");
  /** Options of Azure that fetch a token elsewhere, or with a file of the server, before a signature of the statement is used. */
  private static final Pattern FETCHES_TOKEN = Pattern.compile(".*(client_id|client_secret|tenant|authority|federated|msi_|azure_cli|fabric_).*");

  private LanceCredentials() {}

  /** Refuses every option of a store in a statement over a table of a catalog. */
  static void refuseBesideCatalog(Map given) {
    TreeMap options = lowered(given);
    String option = (String) options.ceilingKey(CREATED + PREFIX);
    if (option == null || !option.startsWith(CREATED + PREFIX)) option = (String) options.ceilingKey(PREFIX);
    if (option != null && option.indexOf(PREFIX) >= 0) {
      refuse(option, "a statement cannot change how a catalog reaches its store",
          "leave it out; the administrator of the catalog sets spark.sql.catalog.<name>." + option.substring(option.indexOf(PREFIX)));
    }
  }

  /** Refuses options of a store by path that would go with credentials of the driver's environment. */
  public static void refuseBorrowed(Map given) {
    TreeMap options = lowered(given);
    refuseBorrowed(options, "");
    refuseBorrowed(options, CREATED);
  }

  /** A read takes the options with one of the two prefixes, so each half needs credentials of its own. */
  private static void refuseBorrowed(TreeMap options, String prefix) {
    String path = (String) options.get("path");
    if (path == null) path = (String) options.get(prefix + "path");
    // Without a path, the columns that a user declares may have one.
    boolean local = path != null && (path.indexOf("://") < 0 || path.startsWith("file:"));
    Map storage = new HashMap(options.subMap(prefix + PREFIX, prefix + PREFIX + Character.MAX_VALUE));
    if (local || hasOwn(storage, prefix + PREFIX, path == null ? "" : path.substring(0, path.indexOf("://")).toLowerCase(Locale.ROOT))) return;
    Iterator entries = new TreeMap(storage).entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String name = ((String) entry.getKey()).substring((prefix + PREFIX).length());
      boolean plain = PLAIN.matcher(name).matches() && PLAIN_VALUE.matcher((String) entry.getValue()).matches();
      if (!plain) {
        refuse((String) entry.getKey(), "it would go with the credentials of the server's environment",
            "give credentials of your own in the same statement, by the names that the documentation lists, or read a table of a catalog");
      }
    }
  }

  /** The path and the options of a store by their names in lower case; of two spellings, no reader knows which one counts. */
  private static TreeMap lowered(Map given) {
    TreeMap options = new TreeMap();
    Iterator entries = given.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String key = ((String) entry.getKey()).toLowerCase(Locale.ROOT);
      String name = key.startsWith(CREATED) ? key.substring(CREATED.length()) : key;
      if (!name.equals("path") && !name.startsWith(PREFIX)) continue;
      Object other = options.put(key, entry.getValue());
      if (other != null && !other.equals(entry.getValue())) refuse(key, "it has two values", "give one value");
    }
    return options;
  }

  /**
   * Whether options hold credentials that win over all others. The names are exact: Lance ignores unknown names, and takes the environment's value
   * for another spelling of the same name.
   */
  private static boolean hasOwn(Map storage, String prefix, String scheme) {
    if (scheme.equals("s3")) {
      if (isTrue(storage, prefix + "aws_skip_signature")) return true;
      boolean token = storage.containsKey(prefix + "aws_session_token") || !environmentHas(TOKEN_OF_S3);
      return token && storage.containsKey(prefix + "aws_access_key_id") && storage.containsKey(prefix + "aws_secret_access_key");
    }
    if (environmentHas(OF_ENVIRONMENT)) return false;
    if (scheme.equals("gs")) return isTrue(storage, prefix + "google_skip_signature") || storage.containsKey(prefix + "google_service_account_key");
    if (!scheme.equals("az") && !scheme.equals("abfss")) return false;
    boolean key = storage.containsKey(prefix + "azure_storage_account_key") || storage.containsKey(prefix + "azure_storage_token");
    boolean signature = storage.containsKey(prefix + "azure_storage_sas_key") && !matchesAny(storage.keySet().iterator(), FETCHES_TOKEN);
    return key || signature || isTrue(storage, prefix + "azure_skip_signature");
  }

  private static boolean isTrue(Map storage, String key) {
    return "true".equalsIgnoreCase((String) storage.get(key));
  }

  private static boolean environmentHas(Pattern pattern) {
    return matchesAny(System.getenv().keySet().iterator(), pattern);
  }

  private static boolean matchesAny(Iterator names, Pattern pattern) {
    while (names.hasNext()) {
      if (pattern.matcher(((String) names.next()).toLowerCase(Locale.ROOT)).matches()) return true;
    }
    return false;
  }

  private static void refuse(String option, String reason, String remedy) {
    Map parameters = new HashMap();
    parameters.put("type", LanceSource.NAME);
    parameters.put("action", "take options of");
    parameters.put("msg", "lance_spark.errors.OptionError: option '" + option + "' is refused in a statement: " + reason + " - nothing was done - " + remedy);
    Platform.throwException(new AnalysisException("PYTHON_DATA_SOURCE_ERROR",
        scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(parameters))));
  }
}
