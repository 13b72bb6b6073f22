package lancespark;

import java.util.Locale;
import java.util.Map;
import java.util.NavigableMap;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.regex.Pattern;

/**
 * Options of object stores in a statement. Such options never combine with the credentials of a
 * catalog or of the driver's environment, because an endpoint or a proxy in a statement would
 * receive the credentials. Table functions have the same rule:
 * lance_spark/read/ranking/functions.py.
 */
final class LanceCredentials {
  private static final String PREFIX = "storage.";

  /** Prefix of OPTIONS of CREATE TABLE, which Spark passes twice. */
  private static final String CREATED = "option.";

  /** Harmless options: no receiver, and no weaker connection. */
  private static final Pattern PLAIN =
      Pattern.compile(
          "(aws_)?(default_)?region|((connect|request)_)?timeout"
              + "|client_(max_retries|retry_timeout)");

  /** The reference of a table to its namespace: lance_spark/namespaces/reference.py. */
  private static final String NAMESPACE = "lance_spark_namespace_secret";

  private static final Pattern PLAIN_VALUE = Pattern.compile("[\\w -]*");

  /** Variables of the environment with credentials for Lance, in lower case. */
  private static final Pattern TOKEN_OF_S3 = Pattern.compile("(aws_)?(session_)?token");

  private static final Pattern OF_ENVIRONMENT =
      Pattern.compile(
          "(azure|google|gcs|gcp)_.*(key|secret|token|sas|credential|service_account).*"
              + "|(account|access|master|sas)_key|((sas|bearer)_)?token|client_secret"
              + "|federated_token_file|service_account(_path|_key)?|application_credentials");

  /**
   * Options of Azure for a token from a server, or with a file of this machine, before the
   * signature of a statement applies.
   */
  private static final Pattern FETCHES_TOKEN =
      Pattern.compile(
          ".*(client_id|client_secret|tenant|authority|federated|msi_|azure_cli|fabric_).*");

  private LanceCredentials() {}

  /** Refuses every option of a store in a statement over a table of a catalog. */
  static void refuseBesideCatalog(Map<String, String> options) {
    NavigableMap<String, String> sorted = lowerCase(options);
    String option = sorted.ceilingKey(CREATED + PREFIX);
    if (option == null || !option.startsWith(CREATED + PREFIX)) option = sorted.ceilingKey(PREFIX);
    if (option != null && option.contains(PREFIX)) {
      throw refusal(
          option,
          "a statement cannot change how a catalog reaches its store",
          "Leave it out. The administrator of the catalog sets spark.sql.catalog.<name>."
              + option.substring(option.indexOf(PREFIX)));
    }
  }

  /** Refuses options of a store by path without own credentials. */
  static void refuseBorrowed(Map<String, String> options) {
    NavigableMap<String, String> sorted = lowerCase(options);
    refuseBorrowed(sorted, "");
    refuseBorrowed(sorted, CREATED);
  }

  /** A read uses the options of either prefix, so both need credentials. */
  private static void refuseBorrowed(SortedMap<String, String> options, String prefix) {
    String reference = prefix + PREFIX + NAMESPACE;
    if (options.containsKey(reference)) {
      throw refusal(
          reference,
          "the server would ask a namespace of the statement, with the credentials of the server",
          "Read a table of a catalog with the setting spark.sql.catalog.<name>.impl");
    }
    String path = options.get("path");
    if (path == null) path = options.get(prefix + "path");
    // Without this option, the declared columns may have a path.
    boolean local = path != null && (!path.contains("://") || path.startsWith("file:"));
    if (local) return;
    String start = prefix + PREFIX;
    SortedMap<String, String> storage = options.subMap(start, start + Character.MAX_VALUE);
    String scheme =
        path == null ? "" : path.substring(0, path.indexOf("://")).toLowerCase(Locale.ROOT);
    if (hasOwn(storage, start, scheme)) return;
    storage.forEach(
        (key, value) -> {
          boolean plain =
              PLAIN.matcher(key.substring(start.length())).matches()
                  && PLAIN_VALUE.matcher(value).matches();
          if (!plain) {
            throw refusal(
                key,
                "it would go with the credentials of the server's environment",
                "Give credentials of your own in the same statement, by the names that the"
                    + " documentation lists, or read a table of a catalog");
          }
        });
  }

  /**
   * Returns the path and the options of a store by their names in lower case. Two spellings of a
   * name must have equal values, because readers differ in their choice.
   */
  private static NavigableMap<String, String> lowerCase(Map<String, String> options) {
    TreeMap<String, String> sorted = new TreeMap<>();
    options.forEach(
        (option, value) -> {
          String key = option.toLowerCase(Locale.ROOT);
          String name = key.startsWith(CREATED) ? key.substring(CREATED.length()) : key;
          if (!name.equals("path") && !name.startsWith(PREFIX)) return;
          String before = sorted.put(key, value);
          if (before != null && !before.equals(value)) {
            throw refusal(key, "it has two values", "Give one value");
          }
        });
    return sorted;
  }

  /**
   * Tells whether options contain credentials with precedence over the environment. The names are
   * exact: Lance ignores unknown names, and uses the value of the environment for another spelling
   * of a name.
   */
  private static boolean hasOwn(Map<String, String> storage, String prefix, String scheme) {
    if (scheme.equals("s3")) {
      if (isTrue(storage, prefix + "aws_skip_signature")) return true;
      boolean hasToken =
          storage.containsKey(prefix + "aws_session_token") || !environmentHas(TOKEN_OF_S3);
      return hasToken
          && storage.containsKey(prefix + "aws_access_key_id")
          && storage.containsKey(prefix + "aws_secret_access_key");
    }
    if (environmentHas(OF_ENVIRONMENT)) return false;
    return switch (scheme) {
      case "gs" ->
          isTrue(storage, prefix + "google_skip_signature")
              || storage.containsKey(prefix + "google_service_account_key");
      case "az", "abfss" ->
          storage.containsKey(prefix + "azure_storage_account_key")
              || storage.containsKey(prefix + "azure_storage_token")
              || isTrue(storage, prefix + "azure_skip_signature")
              || (storage.containsKey(prefix + "azure_storage_sas_key")
                  && !matchesAny(storage.keySet(), FETCHES_TOKEN));
      default -> false;
    };
  }

  private static boolean isTrue(Map<String, String> storage, String key) {
    return "true".equalsIgnoreCase(storage.get(key));
  }

  private static boolean environmentHas(Pattern pattern) {
    return matchesAny(System.getenv().keySet(), pattern);
  }

  private static boolean matchesAny(Iterable<String> names, Pattern pattern) {
    for (String name : names) {
      if (pattern.matcher(name.toLowerCase(Locale.ROOT)).matches()) return true;
    }
    return false;
  }

  private static RuntimeException refusal(String option, String reason, String remedy) {
    String what = "option '" + option + "' is refused in a statement: " + reason;
    return Errors.thrown(Errors.option(what + ". Nothing was done. " + remedy + "."));
  }
}
