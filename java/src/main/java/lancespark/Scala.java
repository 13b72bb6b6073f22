package lancespark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.Supplier;
import scala.Function0;
import scala.Function1;
import scala.Function2;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction2;

/** Conversions between the collections of Scala and Java. Each conversion to Java makes a copy. */
final class Scala {
  private Scala() {}

  static <T> List<T> list(scala.collection.Iterable<? extends T> items) {
    return new ArrayList<>(CollectionConverters.asJavaCollection(items));
  }

  static <T> Seq<T> seq(Collection<? extends T> items) {
    List<T> copy = new ArrayList<>(items);
    return CollectionConverters.asScala(copy).toSeq();
  }

  @SafeVarargs
  @SuppressWarnings("varargs") // the list is only copied
  static <T> Seq<T> seqOf(T... items) {
    return seq(Arrays.asList(items));
  }

  static <K, V> Map<K, V> map(scala.collection.Map<K, V> items) {
    return new LinkedHashMap<>(CollectionConverters.asJava(items));
  }

  static <K, V> scala.collection.immutable.Map<K, V> immutableMap(Map<K, V> items) {
    return scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(items));
  }

  /** Returns the value of an option, or null for None. */
  static <T> T orNull(Option<T> option) {
    return option.isEmpty() ? null : option.get();
  }

  static <A> Function0<A> function(Supplier<A> supplier) {
    return new AbstractFunction0<>() {
      @Override
      public A apply() {
        return supplier.get();
      }
    };
  }

  static <A, B> Function1<A, B> function(Function<A, B> function) {
    return new AbstractFunction1<>() {
      @Override
      public B apply(A argument) {
        return function.apply(argument);
      }
    };
  }

  static <A, B, C> Function2<A, B, C> function(BiFunction<A, B, C> function) {
    return new AbstractFunction2<>() {
      @Override
      public C apply(A first, B second) {
        return function.apply(first, second);
      }
    };
  }
}
