package lancespark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.types.*;

/**
 * Reads only the fields extracted from structs by a query.
 *
 * <p>A struct without some of its fields is never NULL: its fields are NULL instead. Lance tells
 * whether a struct is NULL only from all of its fields. Extraction of a field gives the same value
 * in both cases. Any other use, such as a test for NULL or a comparison, reads the whole struct.
 * Spark's own SchemaPruning also prunes below a test for NULL, so this class replaces it. Elements
 * of lists and maps are read whole.
 */
final class Nested {
  /** Narrowed columns by the id of the original columns. */
  private final Map<ExprId, Attribute> narrowed = new HashMap<>();

  private Nested(List<? extends Attribute> columns) {
    for (Attribute column : columns) narrowed.put(column.exprId(), column);
  }

  static Nested over(List<? extends Attribute> columns) {
    return new Nested(columns);
  }

  /** Removes unused fields from structs. Returns the same list if all fields are used. */
  static List<AttributeReference> narrow(
      List<AttributeReference> columns, List<? extends Expression> expressions) {
    Map<ExprId, Set<List<String>>> used = new HashMap<>();
    for (Expression e : expressions) collect(e, used);
    List<AttributeReference> result = new ArrayList<>();
    boolean changed = false;
    for (AttributeReference column : columns) {
      Set<List<String>> paths = used.get(column.exprId());
      DataType type = column.dataType();
      if (paths != null) {
        type = pruned(type, column.nullable(), List.of(), paths, prefixes(paths));
      }
      boolean same = DataType.equalsIgnoreNullability(type, column.dataType());
      changed |= !same;
      result.add(same ? column : LancePushdown.attribute(column, type, column.metadata()));
    }
    return changed ? result : columns;
  }

  /**
   * Adds the path of each used column or field. A path ends at the use of the value by an
   * expression.
   */
  private static void collect(Expression e, Map<ExprId, Set<List<String>>> used) {
    ArrayDeque<String> path = new ArrayDeque<>();
    Expression at = e;
    while (at instanceof GetStructField field) {
      path.addFirst(nameOf(field));
      at = field.child();
    }
    if (at instanceof AttributeReference column) {
      used.computeIfAbsent(column.exprId(), id -> new HashSet<>()).add(List.copyOf(path));
    } else {
      for (Expression child : Trees.children(at)) collect(child, used);
    }
  }

  private static String nameOf(GetStructField field) {
    return ((StructType) field.child().dataType()).fields()[field.ordinal()].name();
  }

  /**
   * Removes unused fields from a type. A NOT NULL field becomes nullable if a struct around it can
   * be NULL, because the remaining fields are then NULL.
   */
  private static DataType pruned(
      DataType type,
      boolean nullable,
      List<String> path,
      Set<List<String>> used,
      Set<List<String>> prefixes) {
    if (used.contains(path) || !(type instanceof StructType struct)) return type;
    Set<String> names = new HashSet<>();
    List<StructField> result = new ArrayList<>();
    for (StructField field : struct.fields()) {
      if (!names.add(field.name())) return type;
      List<String> below = new ArrayList<>(path);
      below.add(field.name());
      if (!prefixes.contains(below)) continue;
      boolean optional = nullable || field.nullable();
      DataType fieldType = pruned(field.dataType(), optional, below, used, prefixes);
      result.add(new StructField(field.name(), fieldType, optional, field.metadata()));
    }
    return result.isEmpty() ? type : new StructType(result.toArray(StructField[]::new));
  }

  private static Set<List<String>> prefixes(Set<List<String>> paths) {
    Set<List<String>> prefixes = new HashSet<>();
    for (List<String> path : paths) {
      for (int i = 1; i <= path.size(); i++) prefixes.add(path.subList(0, i));
    }
    return prefixes;
  }

  /** Returns an expression over the narrowed columns. */
  Expression rewrite(Expression e) {
    if (e instanceof AttributeReference attribute) {
      Attribute column = narrowed.get(attribute.exprId());
      return column == null ? e : column;
    }
    if (e instanceof GetStructField field) {
      Expression child = rewrite(field.child());
      int ordinal = ((StructType) child.dataType()).fieldIndex(nameOf(field));
      return new GetStructField(child, ordinal, field.name());
    }
    return Trees.mapChildren(e, this::rewrite);
  }

  List<Expression> rewriteAll(List<? extends Expression> expressions) {
    return Trees.mapAll(expressions, this::rewrite);
  }
}
