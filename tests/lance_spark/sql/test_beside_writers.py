"""SQL statements with concurrent commits: the result equals some serial order of both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark import Connection
from lance_spark.dataset import _open_pinned
from lance_spark.errors import LanceSparkError
from lance_spark.sql import statements
from tests.lance_spark.dml.tables import acting_once, content, make
from tests.lance_spark.dml.writers import CONCURRENT_CHANGES, Act, delete_and_clean_up
from tests.lance_spark.sql.conftest import Sql
from tests.support import inline_rows

pytestmark = [pytest.mark.classic, pytest.mark.sample(1, tests=2)]

STATEMENTS = {
    "update in place": "UPDATE {t} SET a = coalesce(a, 0) * 2",
    "update rows": "UPDATE {t} SET a = a + 1000, s = concat(s, '+'), v = v, t = t WHERE id IN (SELECT id FROM {t} WHERE id IN (2, 13))",
    "delete": "DELETE FROM {t} WHERE id IN (SELECT id FROM {t} WHERE a % 2 = 0)",
    "delete in Lance": "DELETE FROM {t} WHERE id >= 10 AND id < 21",
    "merge": (
        "MERGE INTO {t} o USING (SELECT id, cast(id AS int) AS a FROM range(11, 40, 3)) n ON o.id = n.id "
        "WHEN MATCHED THEN UPDATE SET a = n.a + 7 WHEN NOT MATCHED THEN INSERT (id, a) VALUES (n.id, n.a)"
    ),
}
QUICK = {"update in place": ("compact",)}


def outcome(uri: str, *acts: Act) -> list[dict[str, Any]] | str:
    """Returns the rows after some acts, or the error of an act."""
    try:
        for act in acts:
            act(uri)
    except (LanceSparkError, PySparkException, OSError, ValueError) as error:
        return str(error)
    return content(uri)


@pytest.mark.parametrize(
    ("statement", "change", "moment"),
    [
        pytest.param(statement, change, moment, marks=() if quick else pytest.mark.long)
        for statement in STATEMENTS
        for change in CONCURRENT_CHANGES
        for moment in ("before", "after")
        for quick in [
            change in QUICK.get(statement, ()) and (moment == "before") == (change != "compact")
        ]
    ],
)
def test_a_statement_and_another_commit_are_as_one_after_the_other(
    sql: Sql, db: Connection, tmp_path: Path, statement: str, change: str, moment: str
) -> None:
    uris = [str(tmp_path / f"{kind}.lance") for kind in ("both", "ours", "theirs", "alone")]
    make(uris[0])
    lance.dataset(uris[0]).delete("id = 5")
    for uri in uris[1:]:
        shutil.copytree(uris[0], uri)

    def act(uri: str) -> None:
        sql(STATEMENTS[statement].replace("{t}", f"{{c}}.{Path(uri).stem}"))

    act_of_other = CONCURRENT_CHANGES[change]
    orders = [outcome(uris[1], act, act_of_other), outcome(uris[2], act_of_other, act)]
    other_only = outcome(uris[3], act_of_other)
    with acting_once(moment, lambda: act_of_other(uris[0])) as acted:
        both = outcome(uris[0], act)
    assert acted
    if (
        isinstance(both, str) and "at the moment of the commit" in both
    ):  # the commit is in the table, based on a possibly conflicting commit
        assert moment == "after" and content(uris[0]) in orders
        return
    assert not list(Path(uris[0], "_lance_spark").glob("staging/*"))
    if isinstance(both, str):
        assert content(uris[0]) == other_only
        # A plan resolved before a column was dropped, renamed or cast is never evaluated afterwards.
        assert isinstance(orders[1], str) or change.startswith(("drop", "rename the", "cast"))
        return
    assert both in orders


@pytest.mark.long
def test_two_statements_at_once_in_two_threads(
    sql: Sql, db: Connection, spark: SparkSession
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    sql("CREATE TABLE {c}.t AS SELECT id, 0 AS a, 0 AS b FROM range(40)")
    statements = [
        f"UPDATE {{c}}.t SET {column} = {column} + 1 WHERE id % 2 = {half}"
        for column, half in ("a0", "b0")
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(sql, statements))
    assert sql("SELECT count(*), min(a), sum(a) div 20, min(b), sum(b) div 20 FROM {c}.t") == [
        (40, 0, 1, 0, 1)
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", ["delete", "in place"])
def test_a_subquery_over_the_table_is_read_again(
    sql: Sql, db: Connection, tmp_path: Path, change: str
) -> None:
    """A commit to fragments that the statement only reads makes the statement run again."""
    make(uri := str(tmp_path / "t.lance"))
    acts: dict[str, Act] = {
        "delete": lambda uri: lance.dataset(uri).delete("id = 29"),
        "in place": lambda uri: inline_rows.update(uri, "id >= 20", id="id + 100"),
    }
    with acting_once("before", lambda: acts[change](uri)) as acted, inline_rows.only("columns"):
        sql("UPDATE {c}.t SET a = (SELECT max(id) FROM {c}.t) WHERE id = 1")
    assert acted and sql("SELECT a FROM {c}.t WHERE id = 1") == [
        (28 if change == "delete" else 129,)
    ]
    with (
        acting_once("after", lambda: lance.dataset(uri).delete("id = 12")),
        pytest.raises(PySparkException, match="at the moment of the commit"),
    ):
        sql("UPDATE {c}.t SET a = (SELECT max(id) FROM {c}.t) WHERE id = 1")


def test_two_merges_insert_a_missing_row_once(sql: Sql, db: Connection, tmp_path: Path) -> None:
    """An insert-only MERGE looks for its rows again after a concurrent MERGE."""
    make(uri := str(tmp_path / "t.lance"))
    merge = "MERGE INTO {c}.t USING (SELECT id FROM range(27, 33)) n ON t.id = n.id WHEN NOT MATCHED THEN INSERT (id) VALUES (n.id)"
    new = lance.dataset(uri).to_table(filter="id < 2")
    source = new.set_column(
        new.schema.get_field_index("id"), new.schema.field("id"), pa.array([30, 31], pa.int64())
    )
    insert = lance.dataset(uri).merge_insert("id").when_not_matched_insert_all()
    with acting_once("before", lambda: insert.execute(source)) as acted:
        assert sql(merge) == [(1, 0, 0, 1)]
    assert acted and sql(
        "SELECT id, count(*) FROM {c}.t WHERE id >= 27 GROUP BY id ORDER BY id"
    ) == [(i, 1) for i in range(27, 33)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("create", ["CREATE TABLE", "CREATE OR REPLACE TABLE"])
def test_a_table_that_a_concurrent_writer_creates_gets_no_rows_of_a_create(
    sql: Sql, db: Connection, spark: SparkSession, create: str
) -> None:
    uri = f"{db.uri}/t.lance"

    def create_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import lance

        lance.write_dataset(pa.table({"id": [100]}), uri)
        yield from batches

    spark.range(0, 3, 1, 1).mapInArrow(create_first, "id bigint").createOrReplaceTempView(
        "creating"
    )
    if create == "CREATE TABLE":
        with pytest.raises(PySparkException, match="TableExistsError"):
            sql("CREATE TABLE {c}.t AS SELECT * FROM creating")
        assert lance.dataset(uri).to_table().to_pydict() == {"id": [100]}
        return
    sql("CREATE OR REPLACE TABLE {c}.t AS SELECT * FROM creating")
    assert lance.dataset(uri).to_table().to_pydict() == {"id": [0, 1, 2]}


@pytest.mark.sample(3)
@pytest.mark.parametrize("moment", ["before it is run", "before its tasks open it"])
@pytest.mark.parametrize("statement", ["update rows", "delete", "merge"])
def test_a_statement_whose_version_is_cleaned_up_is_run_again(
    sql: Sql,
    db: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    moment: str,
) -> None:
    make(uri := str(tmp_path / "t.lance"))
    make(twin := str(tmp_path / "twin.lance"))
    acted = list[int]()

    def clean_up_first(real: Any) -> Any:
        def run(*arguments: Any, **more: Any) -> Any:
            if not acted:
                acted.append(1)
                delete_and_clean_up(uri)
                _open_pinned.cache_clear()
            return real(*arguments, **more)

        return run

    owner, name = (
        (statements, "_open_analyzed")
        if moment == "before it is run"
        else (statements.RowStatement, "_read_rows")
    )
    monkeypatch.setattr(owner, name, clean_up_first(getattr(owner, name)))
    sql(STATEMENTS[statement].replace("{t}", "{c}.t"))
    delete_and_clean_up(twin)
    sql(STATEMENTS[statement].replace("{t}", "{c}.twin"))
    assert acted and content(uri) == content(twin)
