package lancespark;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** Puts compiled classes where Spark finds them by name: into the class loader that has this one. */
public final class LanceClasses {
  /** Defines all classes; a class comes after those that it extends. Says in the JVM's properties which there are. */
  public void define(Map files, String property, String digest) throws Exception {
    Method define = ClassLoader.class.getDeclaredMethod("defineClass", new Class[] {String.class, byte[].class, int.class, int.class});
    define.setAccessible(true);
    List todo = new ArrayList(files.keySet());
    todo.remove("lance/DefaultSource.class");
    todo.remove("lancespark/LanceClasses.class");
    while (!todo.isEmpty()) {
      List later = new ArrayList();
      Throwable last = null;
      Iterator each = todo.iterator();
      while (each.hasNext()) {
        String path = (String) each.next();
        byte[] code = (byte[]) files.get(path);
        String name = path.substring(0, path.length() - ".class".length()).replace('/', '.');
        try {
          define.invoke(LanceClasses.class.getClassLoader(), new Object[] {name, code, Integer.valueOf(0), Integer.valueOf(code.length)});
        } catch (InvocationTargetException error) {
          last = error.getCause();
          later.add(path);
        }
      }
      if (later.size() == todo.size()) throw new IllegalStateException(last);
      todo = later;
    }
    System.setProperty(property, digest);
  }
}
