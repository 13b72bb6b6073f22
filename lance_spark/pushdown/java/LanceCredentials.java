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
  /** Options that neither name a receiver nor weaken a connection. */
  private static final Pattern PLAIN = Pattern.compile("(aws_)?(default_)?region|((connect|request)_)?timeout|client_(max_retries|retry_timeout)");
  private static final Pattern PLAIN_VALUE = Pattern.compile("[\\w -]*");
  private static final Pattern CREDENTIAL = Pattern.compile(".*(account_key|access_key|sas_key|sas_token|bearer_token|storage_token|client_secret|service_account_key)");
  private static final Pattern OF_ENVIRONMENT = Pattern.compile("(AZURE|GOOGLE|GCS|GCP)_.*(KEY|SECRET|TOKEN|SAS|CREDENTIAL|SERVICE_ACCOUNT).*");

  private LanceCredentials() {}

  /** Refuses every option of a store in a statement over a table of a catalog. */
  static void refuseBesideCatalog(Map given) {
    TreeMap options = ofStore(given);
    if (!options.isEmpty()) {
      refuse((String) options.firstKey(), "a statement cannot change how a catalog reaches its store",
          "leave it out; the administrator of the catalog sets spark.sql.catalog.<name>." + options.firstKey());
    }
  }

  /** Refuses options of a store by path that would go with credentials of the driver's environment. */
  public static void refuseBorrowed(Map given) {
    TreeMap options = ofStore(given);
    String path = (String) new org.apache.spark.sql.util.CaseInsensitiveStringMap(given).get("path");
    if (path == null || path.indexOf("://") < 0 || path.startsWith("file:") || hasOwn(options, path.startsWith("s3"))) return;
    Iterator entries = options.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String name = ((String) entry.getKey()).substring(PREFIX.length());
      boolean plain = PLAIN.matcher(name).matches() && PLAIN_VALUE.matcher((String) entry.getValue()).matches();
      if (!plain) {
        refuse((String) entry.getKey(), "it would go with the credentials of the server's environment",
            "give credentials of your own in the same statement, or read a table of a catalog");
      }
    }
  }

  /** Options of a store in lower case, sorted; those of CREATE TABLE come as `option.storage.x`, too. */
  private static TreeMap ofStore(Map given) {
    TreeMap options = new TreeMap();
    Iterator entries = given.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String key = ((String) entry.getKey()).toLowerCase(Locale.ROOT);
      if (key.startsWith("option.")) key = key.substring("option.".length());
      if (key.startsWith(PREFIX)) options.put(key, entry.getValue());
    }
    return options;
  }

  /** Whether options hold credentials that win over all others. Of stores but S3 some of the environment's would win. */
  private static boolean hasOwn(TreeMap options, boolean isS3) {
    boolean id = false;
    boolean secret = false;
    boolean other = false;
    Iterator entries = options.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry entry = (Map.Entry) entries.next();
      String name = ((String) entry.getKey()).substring(PREFIX.length());
      if (name.endsWith("skip_signature") && "true".equalsIgnoreCase((String) entry.getValue())) return true;
      id |= name.endsWith("access_key_id");
      secret |= name.endsWith("secret_access_key");
      other |= CREDENTIAL.matcher(name).matches();
    }
    return isS3 ? id && secret : other && !environmentHasSome();
  }

  private static boolean environmentHasSome() {
    Iterator names = System.getenv().keySet().iterator();
    while (names.hasNext()) {
      if (OF_ENVIRONMENT.matcher((String) names.next()).matches()) return true;
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
