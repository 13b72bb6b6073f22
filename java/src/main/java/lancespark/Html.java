package lancespark;

import java.util.ArrayList;
import java.util.List;
import scala.xml.Elem;
import scala.xml.MetaData;
import scala.xml.Node;
import scala.xml.Null$;
import scala.xml.Text;
import scala.xml.TopScope$;
import scala.xml.UnprefixedAttribute;

/**
 * Elements of a page of the web UI. Texts and attributes are escaped when Spark writes the page, so
 * a text never becomes an element.
 */
final class Html {
  private static final int MOST_CHARS = 300;

  private Html() {}

  /** Returns an element with a class, or "" for none. Children are nodes and texts, or null. */
  static Node element(String name, String cssClass, Object... children) {
    return make(name, cssClass.isEmpty() ? none() : attribute("class", cssClass, none()), children);
  }

  /** Returns a text from a table: cut, without control characters, with its own direction. */
  static Node text(String value) {
    String cut = value.length() <= MOST_CHARS ? value : value.substring(0, MOST_CHARS) + "…";
    StringBuilder printable = new StringBuilder();
    cut.codePoints().map(Html::printable).forEach(printable::appendCodePoint);
    return element("bdi", "", printable.toString());
  }

  static Node link(String target, String text) {
    return make("a", attribute("href", target, none()), text);
  }

  /** Returns a bar, empty without a total. */
  static Node progress(long done, long total) {
    MetaData value = attribute("value", Long.toString(total == 0 ? 0 : done), none());
    return make("progress", attribute("max", Long.toString(Math.max(1, total)), value));
  }

  /** Returns a part of the page that is open before a click. */
  static Node open(Node details) {
    return ((Elem) details).$percent(attribute("open", "open", none()));
  }

  private static Node make(String name, MetaData attributes, Object... children) {
    List<Node> nodes = new ArrayList<>();
    for (Object child : children) {
      if (child instanceof Node node) nodes.add(node);
      else if (child != null) nodes.add(new Text((String) child));
    }
    return new Elem(null, name, attributes, TopScope$.MODULE$, false, Scala.seq(nodes));
  }

  private static MetaData attribute(String name, String value, MetaData next) {
    return new UnprefixedAttribute(name, value, next);
  }

  private static MetaData none() {
    return Null$.MODULE$;
  }

  /** Replaces control characters, halves of code points, and characters that turn texts around. */
  private static int printable(int character) {
    boolean turns =
        character == 0x061C
            || character == 0x200E
            || character == 0x200F
            || (character >= 0x202A && character <= 0x202E)
            || (character >= 0x2066 && character <= 0x2069);
    int type = Character.getType(character);
    boolean isBroken =
        type == Character.CONTROL || type == Character.SURROGATE || (character & 0xFFFE) == 0xFFFE;
    return turns || isBroken ? 0xFFFD : character;
  }
}
