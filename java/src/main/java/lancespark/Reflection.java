package lancespark;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import scala.Product;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Builds Spark's case classes by the names of their fields, because their constructors grow from release to release. */
public final class Reflection {
  private Reflection() {}

  /** Whether this release of Spark has a class. */
  public static boolean exists(String name) {
    try {
      Class.forName(name);
      return true;
    } catch (ClassNotFoundException error) {
      return false;
    }
  }

  /** Returns a copy of a case class with some fields replaced. A field that this release lacks is passed over. */
  public static Object copy(Product original, Map changes) throws Exception {
    Object[] values = new Object[original.productArity()];
    for (int i = 0; i < values.length; i++) {
      String name = original.productElementName(i);
      values[i] = changes.containsKey(name) ? changes.get(name) : original.productElement(i);
    }
    return constructor(original.getClass(), values.length).newInstance(values);
  }

  public static Object copy(Product original, String name, Object value) throws Exception {
    Map changes = new HashMap();
    changes.put(name, value);
    return copy(original, changes);
  }

  /** Makes a case class from its first fields; the others get their defaults. */
  public static Object create(Class type, Object[] first) throws Exception {
    Constructor longest = null;
    Constructor[] all = type.getConstructors();
    for (int i = 0; i < all.length; i++) {
      if (longest == null || all[i].getParameterCount() > longest.getParameterCount()) longest = all[i];
    }
    Object[] values = new Object[longest.getParameterCount()];
    for (int i = 0; i < values.length; i++) {
      values[i] = i < first.length
          ? first[i]
          : type.getMethod("$lessinit$greater$default$" + (i + 1), new Class[0]).invoke(null, new Object[0]);
    }
    return longest.newInstance(values);
  }

  private static Constructor constructor(Class type, int arity) throws NoSuchMethodException {
    Constructor[] all = type.getConstructors();
    for (int i = 0; i < all.length; i++) {
      if (all[i].getParameterCount() == arity) return all[i];
    }
    throw new NoSuchMethodException(type.getName() + " has no constructor with " + arity + " parameters");
  }

  /** Reads a private field, of the class itself or of one that it extends. */
  public static Object field(Object owner, String name) throws Exception {
    for (Class type = owner.getClass(); type != null; type = type.getSuperclass()) {
      Field[] fields = type.getDeclaredFields();
      for (int i = 0; i < fields.length; i++) {
        if (!fields[i].getName().equals(name)) continue;
        fields[i].setAccessible(true);
        return fields[i].get(owner);
      }
    }
    throw new NoSuchFieldException(owner.getClass().getName() + " has no field " + name);
  }

  public static Object call(Object owner, String name) throws Exception {
    Method method = owner.getClass().getMethod(name, new Class[0]);
    method.setAccessible(true);
    return method.invoke(owner, new Object[0]);
  }

  public static List list(scala.collection.Iterable items) {
    return new ArrayList(CollectionConverters.asJavaCollection(items));
  }

  public static Seq seq(List items) {
    return CollectionConverters.asScala(items).toSeq();
  }

  public static Map map(scala.collection.Map items) {
    return new LinkedHashMap(CollectionConverters.asJava(items));
  }
}
