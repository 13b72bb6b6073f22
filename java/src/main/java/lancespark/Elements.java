package lancespark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.IntegerType$;

/**
 * Reads only the leading elements of vectors of which nothing else is used: `v[0]`, `element_at(v, 1)`, `size(v)`, `v IS NULL`.
 *
 * The scan gives a shorter array under the same name, so that expressions stay as they are; but for `size`, which becomes the number of
 * elements that the table's type says. Only the scan knows whether a column is such a vector, and whether it is long enough.
 */
final class Elements {
  private static final int WHOLE = -1;

  /** How many leading elements are used, by the id of the column; WHOLE where anything else is done with it. */
  private final Map used = new HashMap();
  /** How many elements a whole vector has, by the id of a column that the scan has shortened. */
  private final Map sizes = new HashMap();

  /** Takes in expressions above the scan. */
  void use(List expressions) {
    Iterator each = expressions.iterator();
    while (each.hasNext()) use((Expression) each.next());
  }

  private void use(Expression e) {
    int elements = elements(e);
    Expression column = elements == WHOLE ? e : (Expression) Reflection.list(e.children()).get(0);
    if (column instanceof AttributeReference) {
      Object id = ((AttributeReference) column).exprId();
      Integer before = (Integer) used.get(id);
      boolean whole = elements == WHOLE || (before != null && before.intValue() == WHOLE);
      used.put(id, Integer.valueOf(whole ? WHOLE : Math.max(elements, before == null ? 1 : before.intValue())));
      return;
    }
    Iterator children = Reflection.list(e.children()).iterator();
    while (children.hasNext()) use((Expression) children.next());
  }

  /** How many leading elements of its first child an expression needs. */
  private static int elements(Expression e) {
    if (e instanceof Size || e instanceof IsNull || e instanceof IsNotNull) return 1;
    if (e instanceof GetArrayItem) return place(((GetArrayItem) e).ordinal(), 1);
    return e instanceof ElementAt && ((ElementAt) e).left().dataType() instanceof ArrayType ? place(((ElementAt) e).right(), 0) : WHOLE;
  }

  private static int place(Expression ordinal, int first) {
    Object number = ordinal instanceof Literal ? ((Literal) ordinal).value() : null;
    int elements = number instanceof Integer ? ((Integer) number).intValue() + first : 0;
    return elements > 0 ? elements : WHOLE;
  }

  /** What the scan is asked to shorten: a number of elements by the name of the column. */
  Map wanted(List columns) {
    Map wanted = new TreeMap();
    for (int i = 0; i < columns.size(); i++) {
      Attribute column = (Attribute) columns.get(i);
      Integer elements = (Integer) used.get(column.exprId());
      if (column.dataType() instanceof ArrayType && elements != null && elements.intValue() != WHOLE) wanted.put(column.name(), elements);
    }
    return wanted;
  }

  /** Takes note of what the scan has shortened. */
  void shortened(List columns, Map byName) {
    for (int i = 0; i < columns.size(); i++) {
      Attribute column = (Attribute) columns.get(i);
      if (byName.containsKey(column.name())) sizes.put(column.exprId(), byName.get(column.name()));
    }
  }

  List rewriteAll(List expressions) {
    if (sizes.isEmpty()) return expressions;
    List rewritten = new ArrayList();
    Iterator each = expressions.iterator();
    while (each.hasNext()) rewritten.add(rewrite((Expression) each.next()));
    return rewritten;
  }

  Expression rewrite(Expression e) {
    if (sizes.isEmpty()) return e;
    if (e instanceof Size && ((Size) e).child() instanceof AttributeReference) {
      AttributeReference column = (AttributeReference) ((Size) e).child();
      Object size = sizes.get(column.exprId());
      if (size == null) return e;
      Object ofNull = ((Size) e).legacySizeOfNull() ? Integer.valueOf(-1) : null;
      return new If(new IsNull(column), Literal$.MODULE$.create(ofNull, IntegerType$.MODULE$), Literal$.MODULE$.create(size, IntegerType$.MODULE$));
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
}
