package lancespark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A JSON object with typed access to its values. Requests to Python and its answers have this form.
 */
final class Json extends LinkedHashMap<String, Object> {
  private static final long serialVersionUID = 1L;
  private static final ObjectMapper MAPPER = new ObjectMapper();

  Json() {}

  Json(Map<?, ?> values) {
    values.forEach((key, value) -> put((String) key, value));
  }

  static Json parse(String text) {
    return read(text, Json.class);
  }

  /** Returns the object of a class with the fields of a JSON object. */
  static <T> T read(String text, Class<T> type) {
    try {
      return MAPPER.readValue(text, type);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }

  static String write(Object value) {
    try {
      return MAPPER.writeValueAsString(value);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Sets a value and returns this object. */
  Json with(String key, Object value) {
    put(key, value);
    return this;
  }

  /** Returns a text, or null for an absent key. */
  String text(String key) {
    return (String) get(key);
  }

  boolean isTrue(String key) {
    return Boolean.TRUE.equals(get(key));
  }

  /** Returns a number, or -1 for an absent key. */
  long number(String key) {
    return get(key) instanceof Number number ? number.longValue() : -1L;
  }

  /** Returns an object, or null for an absent key. */
  Json object(String key) {
    return get(key) instanceof Map<?, ?> values ? new Json(values) : null;
  }

  /** Returns a list of objects; empty for an absent key. */
  List<Json> objects(String key) {
    return items(key).stream().map(item -> new Json((Map<?, ?>) item)).toList();
  }

  /** Returns a list of texts; empty for an absent key. */
  List<String> texts(String key) {
    return items(key).stream().map(String.class::cast).toList();
  }

  /** Returns a list with possible NULLs; empty for an absent key. */
  List<Object> items(String key) {
    return get(key) instanceof List<?> list ? new ArrayList<>(list) : List.of();
  }

  /** Returns an object of texts; empty for an absent key. */
  Map<String, String> options(String key) {
    Map<String, String> options = new LinkedHashMap<>();
    if (get(key) instanceof Map<?, ?> values) {
      values.forEach((name, value) -> options.put((String) name, (String) value));
    }
    return options;
  }
}
