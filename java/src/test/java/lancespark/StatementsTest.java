package lancespark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The grammar of the statements, and names of tables in procedures. */
final class StatementsTest {
  private static LanceStatement parse(String sql) {
    return LanceStatement.of(new StatementTokens(sql, false));
  }

  private static LanceStatement.Procedure procedure(String sql) {
    return (LanceStatement.Procedure) parse(sql);
  }

  private static LanceStatement.Text text(String value) {
    return new LanceStatement.Text(value);
  }

  private static LanceStatement.Sql sql(String source) {
    return new LanceStatement.Sql(source);
  }

  @Test
  void refreshColumnHasAConditionAndOptions() {
    var statement =
        procedure(
            "refresh  COLUMN `a``b` /* with ( */ ON lance.`d.x` . t -- on\n"
                + " WHERE s = 'with (a = 1)' AND f(x, (1)) WITH (stale = true, 'Task_Size' = 1 +"
                + " f(2, 3)) ;; ");
    assertEquals(List.of("lance", "d.x", "t"), statement.table());
    assertEquals("backfill", statement.name());
    assertEquals(
        Map.of(
            "column", text("a`b"),
            "where", new LanceStatement.Condition("s = 'with (a = 1)' AND f(x, (1))"),
            "stale", sql("true"),
            "task_size", sql("1 + f(2, 3)")),
        statement.arguments());
  }

  @Test
  void aConditionMayHaveACommonTable() {
    var statement =
        procedure("REFRESH COLUMN c ON t WHERE id IN (WITH x AS (SELECT 1) SELECT * FROM x);");
    assertEquals(
        new LanceStatement.Condition("id IN (WITH x AS (SELECT 1) SELECT * FROM x)"),
        statement.arguments().get("where"));
  }

  @Test
  void optimizeIsOfATableOrOfAnIndex() {
    assertEquals(
        new LanceStatement.Procedure(List.of("t"), "compact", Map.of()), parse("OPTIMIZE t"));
    assertEquals(
        new LanceStatement.Procedure(List.of("index"), "compact", Map.of()),
        parse("OPTIMIZE index"));
    assertEquals(
        new LanceStatement.Procedure(
            List.of("c", "t"), "optimize_indices", Map.of("index", text("i"))),
        parse("optimize index i on c.t"));
  }

  @Test
  void vacuumRetainsHours() {
    assertEquals(Map.of(), procedure("VACUUM t").arguments());
    assertEquals(
        Map.of("retain_hours", sql("-1.5")), procedure("VACUUM t RETAIN -1.5 HOURS").arguments());
    assertNull(parse("VACUUM t RETAIN 5"));
    assertNull(parse("VACUUM t WITH (retain_hours = 1) RETAIN 5 HOURS"));
  }

  @Test
  void tagsAndBranchesHaveNamesAndVersions() {
    assertEquals(
        Map.of("if_not_exists", sql("true"), "name", sql("'v 1'"), "version", sql("3")),
        procedure("ALTER TABLE t CREATE TAG IF NOT EXISTS 'v 1' AS OF VERSION 3").arguments());
    assertEquals(
        Map.of("name", text("b"), "from_ref", text("version")),
        procedure("ALTER TABLE t CREATE BRANCH b AS OF version").arguments());
    assertEquals(
        Map.of("if_exists", sql("true"), "name", text("b")),
        procedure("ALTER TABLE t DROP BRANCH IF EXISTS b").arguments());
    assertEquals(
        Map.of("version", text("x")), procedure("RESTORE TABLE t TO VERSION AS OF x").arguments());
    assertEquals(
        Map.of("name", text("2024t")), procedure("ALTER TABLE t CREATE TAG 2024t").arguments());
    assertEquals("restore", procedure("RESTORE t TO VERSION AS OF 2").name());
  }

  @Test
  void otherTablesAreAboutATable() {
    var tags = new LanceStatement.About(List.of("a", "t"), "tags");
    assertEquals(tags, parse("SHOW TAGS FROM a.t"));
    assertEquals(tags, parse("show tags in a.t"));
    assertEquals(tags, parse("SHOW TAGS a.t"));
    assertEquals(new LanceStatement.About(List.of("t"), "versions"), parse("DESC HISTORY t"));
  }

  @Test
  void columnsAreLists() {
    assertEquals(
        Map.of("columns", new LanceStatement.Texts(List.of("a", "b c"))),
        procedure("ALTER TABLE t SET UNENFORCED PRIMARY KEY (a, `b c`)").arguments());
  }

  @Test
  void otherTextsAreNoStatements() {
    for (String sql :
        List.of(
            "",
            ";",
            "SELECT 1",
            "OPTIMIZE",
            "OPTIMIZE t ZORDER BY id",
            "OPTIMIZE 't'",
            "OPTIMIZE t WITH ()",
            "OPTIMIZE t WITH (a = )",
            "OPTIMIZE t WITH (a = 1, a = 2)",
            "OPTIMIZE t WITH (a = 1",
            "OPTIMIZE t; OPTIMIZE u",
            "OPTIMIZE /*+ hint */ t",
            "OPTIMIZE t /* unclosed",
            "OPTIMIZE `t",
            "VACUUM t DRY RUN",
            "REFRESH TABLE t",
            "REFRESH t",
            "REFRESH COLUMN c ON t WHERE",
            "REFRESH COLUMN c ON t WHERE WITH (a = 1)",
            "DESCRIBE HISTORY",
            "DESCRIBE t",
            "SHOW TABLES IN t",
            "SHOW TAGS",
            "ALTER TABLE t CREATE TAG",
            "ALTER TABLE t ADD COLUMNS (c INT)",
            "ALTER TABLE t SET TBLPROPERTIES ('a' = 'b')",
            "RESTORE TABLE t TO TIMESTAMP AS OF '2024-01-01'",
            "CREATE TABLE t (id INT)",
            "DROP TABLE t")) {
      assertNull(parse(sql), sql);
    }
  }

  @Test
  void namesOfProceduresAreDivided() {
    assertEquals(List.of("a", "t"), LanceUnresolved.partsOf("a.t"));
    assertEquals(List.of("/data/a.b/t.lance"), LanceUnresolved.partsOf("/data/a.b/t.lance"));
    assertEquals(List.of("c", "a.b", "t/u"), LanceUnresolved.partsOf("`c`.`a.b`.`t/u`"));
    assertEquals(List.of("a`.b"), LanceUnresolved.partsOf("a`.b"));
    assertEquals(List.of("c", "", "t"), LanceUnresolved.partsOf("c..t"));
  }
}
