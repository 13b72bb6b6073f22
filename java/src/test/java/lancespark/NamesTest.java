package lancespark;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.junit.jupiter.api.Test;

/** Quotation of names, JSON of requests, and options of object stores. */
final class NamesTest {
  @Test
  void backquotesDouble() {
    assertEquals("`a``b.c`", LanceUnresolved.quoteIdentifier("a`b.c"));
  }

  @Test
  void locationQuotesEveryPart() {
    LanceCatalog catalog = new LanceCatalog();
    SparkRelease.setField(catalog, "name", "my`lance");
    Identifier identifier = Identifier.of(new String[] {"d.b"}, "t");
    assertEquals(
        "`my``lance`.`d.b`.`t`", new LanceUnresolved.Location(catalog, identifier).quotedName());
  }

  @Test
  void dottedNameHasTheNamespace() {
    assertEquals("a.b.t", AbstractLanceCatalog.dotted(Identifier.of(new String[] {"a", "b"}, "t")));
    assertEquals("t", AbstractLanceCatalog.dotted(Identifier.of(new String[0], "t")));
  }

  @Test
  void absentKeysHaveDefaults() {
    Json json = Json.parse("{\"n\":3,\"names\":[\"a\"],\"in\":{\"k\":\"v\"},\"none\":null}");
    assertEquals(3, json.number("n"));
    assertEquals(-1, json.number("absent"));
    assertEquals(java.util.List.of("a"), json.texts("names"));
    assertTrue(json.texts("none").isEmpty());
    assertEquals(Map.of("k", "v"), json.options("in"));
    assertNull(json.object("none"));
  }

  @Test
  void optionsOfAStoreNeedTheirOwnCredentials() {
    Map<String, String> endpoint =
        Map.of("path", "s3://b/t", "storage.aws_endpoint", "https://attacker.example");
    Exception error =
        assertThrows(Exception.class, () -> LanceCredentials.refuseBorrowed(endpoint));
    assertTrue(error instanceof AnalysisException);
    assertTrue(error.getMessage().contains("storage.aws_endpoint"), error.getMessage());
    assertDoesNotThrow(
        () ->
            LanceCredentials.refuseBorrowed(
                Map.of("path", "s3://b/t", "storage.aws_region", "eu-west-1")));
    assertDoesNotThrow(
        () -> LanceCredentials.refuseBorrowed(Map.of("path", "/t", "storage.x", "y")));
  }

  @Test
  void twoSpellingsOfAnOptionNeedOneValue() {
    assertThrows(
        AnalysisException.class,
        () -> LanceCredentials.refuseBesideCatalog(Map.of("Storage.key", "a", "storage.key", "b")));
  }
}
