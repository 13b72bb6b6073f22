package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;
import scala.Option;

/**
 * Reads only those fields of structs that are used by themselves.
 *
 * A struct that lost fields arrives as one that is never NULL, with NULL fields where it was (Lance tells whether a struct is NULL only
 * with all of its fields). To whom takes a field out of it that is the same, so a struct is read whole as soon as anything else is done
 * with it: a test for NULL, a comparison, or handing it on. This is why Spark's own SchemaPruning, which prunes below a test for NULL,
 * does not serve here. Elements of lists and maps are read whole too.
 */
final class Nested {
  /** Narrowed columns by the id of the original ones. */
  private final Map narrowed = new HashMap();

  private Nested(List columns) {
    for (int i = 0; i < columns.size(); i++) narrowed.put(((Attribute) columns.get(i)).exprId(), columns.get(i));
  }

  static Nested over(List columns) {
    return new Nested(columns);
  }

  /** Returns the columns with fewer fields in their structs; the same list where none can go. */
  static List narrow(List columns, List expressions) {
    Map used = new HashMap();
    Iterator each = expressions.iterator();
    while (each.hasNext()) collect((Expression) each.next(), used);
    List result = new ArrayList();
    boolean changed = false;
    for (int i = 0; i < columns.size(); i++) {
      AttributeReference column = (AttributeReference) columns.get(i);
      Set paths = (Set) used.get(column.exprId());
      DataType type = paths == null ? column.dataType() : wanted(column.dataType(), column.nullable(), new ArrayList(), paths);
      boolean same = DataType.equalsIgnoreNullability(type, column.dataType());
      changed |= !same;
      result.add(same ? column : LancePushdown.attribute(column, type, column.metadata()));
    }
    return changed ? result : columns;
  }

  /** Adds, per column, the path of names of every column or field that something else than a deeper field is made of. */
  private static void collect(Expression e, Map used) {
    List path = new ArrayList();
    Expression at = e;
    while (at instanceof GetStructField) {
      path.add(0, nameOf((GetStructField) at));
      at = (Expression) ((GetStructField) at).child();
    }
    if (at instanceof AttributeReference) {
      Object id = ((AttributeReference) at).exprId();
      if (!used.containsKey(id)) used.put(id, new HashSet());
      ((Set) used.get(id)).add(path);
      return;
    }
    Iterator children = Reflection.list(at.children()).iterator();
    while (children.hasNext()) collect((Expression) children.next(), used);
  }

  private static String nameOf(GetStructField field) {
    return ((StructType) ((Expression) field.child()).dataType()).fields()[field.ordinal()].name();
  }

  /** Also a NOT NULL field is NULL where a struct around it was: in a struct that loses fields, nothing tells the two apart. */
  private static DataType wanted(DataType type, boolean nullable, List path, Set used) {
    if (used.contains(path) || !(type instanceof StructType)) return type;
    StructField[] fields = ((StructType) type).fields();
    Set names = new HashSet();
    StructType result = new StructType();
    for (int i = 0; i < fields.length; i++) {
      if (!names.add(fields[i].name())) return type;
      List below = new ArrayList(path);
      below.add(fields[i].name());
      if (!isPrefixOfAny(below, used)) continue;
      boolean optional = nullable || fields[i].nullable();
      DataType kept = wanted(fields[i].dataType(), optional, below, used);
      result = result.add(fields[i].name(), kept, optional, fields[i].metadata());
    }
    return result.length() == 0 ? type : result;
  }

  private static boolean isPrefixOfAny(List path, Set used) {
    Iterator each = used.iterator();
    while (each.hasNext()) {
      List other = (List) each.next();
      if (other.size() >= path.size() && other.subList(0, path.size()).equals(path)) return true;
    }
    return false;
  }

  /** Returns an expression over the narrowed columns. */
  Expression rewrite(Expression e) {
    if (e instanceof AttributeReference) {
      Object column = narrowed.get(((AttributeReference) e).exprId());
      return column == null ? e : (Expression) column;
    }
    if (e instanceof GetStructField) {
      GetStructField field = (GetStructField) e;
      Expression child = rewrite((Expression) field.child());
      Option ordinal = ((StructType) child.dataType()).getFieldIndex(nameOf(field));
      return new GetStructField(child, ((Integer) ordinal.get()).intValue(), field.name());
    }
    List children = new ArrayList();
    boolean changed = false;
    Iterator each = Reflection.list(e.children()).iterator();
    while (each.hasNext()) {
      Expression child = (Expression) each.next();
      Expression rewritten = rewrite(child);
      changed |= rewritten != child;
      children.add(rewritten);
    }
    return changed ? (Expression) e.withNewChildren(Reflection.seq(children)) : e;
  }

  List rewriteAll(List expressions) {
    List rewritten = new ArrayList();
    Iterator each = expressions.iterator();
    while (each.hasNext()) rewritten.add(rewrite((Expression) each.next()));
    return rewritten;
  }
}
