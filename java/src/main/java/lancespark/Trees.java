package lancespark;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import scala.Option;
import scala.PartialFunction;
import scala.runtime.AbstractPartialFunction;

/** Walks over Spark's expressions and plans. */
final class Trees {
  private Trees() {}

  static <T extends TreeNode<T>> List<T> children(T node) {
    return Scala.list(node.children());
  }

  /** Rewrites the children of a node. Returns the node itself if no child changes. */
  static <T extends TreeNode<T>> T mapChildren(T node, UnaryOperator<T> change) {
    List<T> children = new ArrayList<>();
    boolean changed = false;
    for (T child : children(node)) {
      T rewritten = change.apply(child);
      changed |= rewritten != child;
      children.add(rewritten);
    }
    return changed ? node.withNewChildren(Scala.seq(children)) : node;
  }

  /** Rewrites all expressions of a list. */
  static <T extends Expression> List<Expression> mapAll(
      List<T> expressions, UnaryOperator<Expression> change) {
    List<Expression> rewritten = new ArrayList<>();
    for (T expression : expressions) rewritten.add(change.apply(expression));
    return rewritten;
  }

  /** Splits a chain of ANDs, from left to right. A loop, because a chain may have thousands. */
  static List<Expression> conjuncts(Expression condition) {
    List<Expression> conjuncts = new ArrayList<>();
    var stack = new java.util.ArrayDeque<Expression>();
    stack.push(condition);
    while (!stack.isEmpty()) {
      Expression next = stack.pop();
      if (next instanceof And and) {
        stack.push(and.right());
        stack.push(and.left());
      } else {
        conjuncts.add(next);
      }
    }
    return conjuncts;
  }

  static boolean areDeterministic(List<? extends Expression> expressions) {
    return expressions.stream().allMatch(Expression::deterministic);
  }

  /** Makes a new attribute without a qualifier. */
  static AttributeReference attribute(String name, DataType type, boolean nullable) {
    return new AttributeReference(
        name,
        type,
        nullable,
        Metadata.empty(),
        NamedExpression$.MODULE$.newExprId(),
        Scala.seqOf());
  }

  /** Names a value. */
  static Alias alias(Expression value, String name) {
    return new Alias(
        value,
        name,
        NamedExpression$.MODULE$.newExprId(),
        Scala.seqOf(),
        Option.empty(),
        Scala.seqOf());
  }

  /** Names a value as an existing attribute. References stay valid. */
  static Alias aliasAs(Expression value, Attribute attribute) {
    return new Alias(
        value,
        attribute.name(),
        attribute.exprId(),
        attribute.qualifier(),
        Option.apply(attribute.metadata()),
        Scala.seqOf());
  }

  static boolean isSame(Attribute left, Attribute right) {
    return left.exprId().equals(right.exprId());
  }

  /** Returns the ids of attributes. */
  static Set<ExprId> ids(List<? extends Attribute> attributes) {
    return attributes.stream().map(Attribute::exprId).collect(Collectors.toSet());
  }

  /** Tells whether an expression is an attribute with one of the ids. */
  static boolean contains(Set<ExprId> ids, Expression e) {
    return e instanceof AttributeReference column && ids.contains(column.exprId());
  }

  /** A partial function over plans, for `transformDownWithSubqueries` and `resolveOperators`. */
  static PartialFunction<LogicalPlan, LogicalPlan> rule(
      Predicate<LogicalPlan> matches, Function<LogicalPlan, LogicalPlan> change) {
    return new AbstractPartialFunction<>() {
      @Override
      public boolean isDefinedAt(LogicalPlan plan) {
        return matches.test(plan);
      }

      @Override
      public LogicalPlan apply(LogicalPlan plan) {
        return change.apply(plan);
      }
    };
  }
}
