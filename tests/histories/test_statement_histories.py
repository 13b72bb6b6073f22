"""Concurrent statements: some serial order of the committed statements gives the result."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.commit.rows import row_commit
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitOutcomeUnknownError
from tests.histories.statements import (
    CompactStatement,
    Condition,
    Counts,
    DeleteStatement,
    Insert,
    MergeRows,
    Row,
    RowStatement,
    Run,
    StatementHistory,
    StatementPlayer,
    StatementStep,
    UpdateStatement,
    run_without_spark,
    with_distinct_values,
)
from tests.support import inline_rows
from tests.support.stock_session import session_without_extension

QUICK, LONG, PART = 40, 1000, 250
IN_SQL = 100

CATALOGS = itertools.count()

KEYS = st.integers(0, 3)


@pytest.fixture(autouse=True)
def without_spark() -> Iterator[None]:
    with inline_rows.inline():
        yield


def rows(most: int) -> st.SearchStrategy[tuple[Row, ...]]:
    return st.lists(st.tuples(KEYS | st.none(), st.integers(0, 5)), min_size=1, max_size=most).map(
        tuple
    )


def sources() -> st.SearchStrategy[tuple[Row, ...]]:
    keyed = st.dictionaries(KEYS, st.integers(20, 25), min_size=1, max_size=3)
    return keyed.flatmap(
        lambda keyed_rows: st.booleans().map(
            lambda null: (*keyed_rows.items(), *([(None, 26)] if null else ()))
        )
    )


def conditions() -> st.SearchStrategy[Condition]:
    keys = st.lists(KEYS, min_size=1, max_size=2, unique=True).map(
        lambda some: Condition(keys=tuple(some))
    )
    return keys | st.integers(0, 1).map(lambda parity: Condition(parity=parity))


def statements() -> st.SearchStrategy[RowStatement]:
    merges = st.builds(MergeRows, sources(), st.booleans(), st.booleans()).filter(
        lambda merge: merge.updates or merge.inserts
    )
    updates = st.builds(
        UpdateStatement, conditions(), st.sampled_from(["k", "a"]), st.sampled_from([1, 11])
    )
    deletes = st.builds(DeleteStatement, conditions())
    # Merges and deletes, on which merges depend, are drawn more often.
    return (
        merges
        | merges
        | updates
        | deletes
        | deletes
        | st.builds(Insert, rows(2))
        | st.just(CompactStatement())
    )


@st.composite
def histories(draw: st.DrawFn) -> StatementHistory:
    branch = st.sampled_from([None, None, "b"]) if draw(st.booleans()) else st.none()
    steps = draw(
        st.lists(
            st.builds(StatementStep, statements(), st.sampled_from(["before", "after"]), branch),
            min_size=2,
            max_size=3,
        )
    )
    start = draw(st.just(()) | rows(4))
    return with_distinct_values(
        StatementHistory(
            rows=start,
            steps=tuple(steps),
            deleted=draw(st.sampled_from([0, 0, 1, len(start)])),
            rows_per_fragment=draw(st.integers(1, 2)),
            stable=draw(st.booleans()),
            in_threads=draw(st.sampled_from([False, False, True])),
        )
    )


def play(history: StatementHistory, run: Run = run_without_spark) -> None:
    with tempfile.TemporaryDirectory() as home:
        StatementPlayer(history, str(Path(home, "t.lance")), run).play()


def play_many(first: int, count: int, act: Callable[[StatementHistory], None] = play) -> None:
    """Draws `count` histories, always the same for a number, and plays each."""
    drawn = settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )

    def run(history: StatementHistory) -> None:
        act(history)

    seed(first)(drawn(given(histories())(run)))()


def test_statements_at_once_are_as_in_some_order():
    play_many(0, QUICK)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LONG, PART))
def test_many_statements_at_once_are_as_in_some_order(first: int):
    play_many(1 + first, PART)


def play_all(some: Iterable[StatementHistory]) -> None:
    for history in some:
        play(history)


MERGE = MergeRows(((1, 20), (2, 21)), updates=False, inserts=True)
UPSERT = MergeRows(((1, 30), (2, 31)), updates=True, inserts=True)
KNOWN_CONFLICTS = {
    "two merges into an empty table": StatementHistory((), (StatementStep(MERGE, "before"), StatementStep(UPSERT))),
    "two merges into an empty table, after the look": StatementHistory((), (StatementStep(MERGE, "after"), StatementStep(UPSERT))),
    "two merges into a table whose rows were all deleted": StatementHistory(
        ((1, 0), (2, 2)), (StatementStep(UPSERT, "after"), StatementStep(MERGE)), deleted=2
    ),
    "a merge that finds all but one key, and a delete": StatementHistory(
        ((1, 1), (2, 2), (3, 3)), (StatementStep(MERGE, "before"), StatementStep(DeleteStatement(Condition(keys=(1,))))), rows_per_fragment=1
    ),
    "a merge that inserts, and a delete of rows that it found": StatementHistory(
        ((1, 1), (3, 3)),
        (StatementStep(MERGE, "after"), StatementStep(DeleteStatement(Condition(keys=(1, 2))))),
        rows_per_fragment=1,
    ),
    "a delete, and a merge that inserts rows to delete": StatementHistory(
        ((1, 1), (3, 3)),
        (StatementStep(DeleteStatement(Condition(keys=(1, 2))), "after"), StatementStep(MERGE)),
        rows_per_fragment=1,
    ),
    "an upsert of other rows, and a delete of a key that it did not find": StatementHistory(
        ((1, 1), (2, 2), (3, 3)), (StatementStep(UPSERT, "after"), StatementStep(UpdateStatement(Condition(keys=(3,)), "k", 11))), rows_per_fragment=1
    ),
    "updates of each other's rows": StatementHistory(
        ((1, 1), (2, 2)),
        (StatementStep(UpdateStatement(Condition(keys=(1,)), "k", 1), "after"), StatementStep(UpdateStatement(Condition(keys=(2,)), "k", -1))),
        rows_per_fragment=1,
    ),
    "a merge, and an append of its keys": StatementHistory(((3, 3),), (StatementStep(MERGE, "after"), StatementStep(Insert(((1, 50),))))),
    "three merges on two branches": StatementHistory(
        (), (StatementStep(MERGE, "after", "b"), StatementStep(UPSERT, "before"), StatementStep(UPSERT, "before", "b"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("stable", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("history", KNOWN_CONFLICTS.values(), ids=KNOWN_CONFLICTS.keys())
def test_known_conflicts_of_statements(history: StatementHistory, stable: bool):
    play(replace(history, stable=stable))


# The test itself detects a committer that is broken on purpose


def without_lock(head: Any, edits: Any) -> Any:
    """Makes a commit operation that does not exclude other statements."""
    operation = OPERATION(head, edits)
    for ids in {"removed_fragment_ids", "deleted_fragment_ids"} & vars(operation).keys():
        setattr(operation, ids, list(edits.removed))
    return operation


OPERATION: Callable[..., Any] = row_commit._operation
BROKEN: dict[str, tuple[str, Callable[..., Any]]] = {
    "absent keys do not count": ("_changes_what_is_read", lambda *_: False),
    "statements do not exclude each other": ("_operation", without_lock),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_committer_that_is_broken_on_purpose_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_commit, *BROKEN[name])
    with pytest.raises(
        (AssertionError, CommitOutcomeUnknownError),
        match=r"ends on branch|at the moment of the commit",
    ):
        play_all(KNOWN_CONFLICTS.values())


# The same on SQL


@pytest.fixture
def run_sql(spark: SparkSession, tmp_path: Path) -> Run:
    return runs_in(spark, registered(spark, tmp_path))


def registered(spark: SparkSession, root: Path) -> str:
    catalog = f"histories{next(CATALOGS)}"
    lance_spark.catalog(spark, catalog, str(root))
    return catalog


@pytest.fixture
def run_without_extension(spark: SparkSession, tmp_path: Path) -> Run:
    """Runs statements in a session with a catalog but without the session extension, where statements report no
    counts.
    """
    catalog = registered(spark, tmp_path)
    return runs_in(session_without_extension(spark, catalog), catalog)


def runs_in(spark: SparkSession, catalog: str) -> Run:
    def run(statement: RowStatement, ref: DatasetRef) -> Counts | None:
        text = statement.sql(f"{catalog}.`{ref.uri}`")
        if text is None:
            return run_without_spark(statement, ref)
        count_rows = spark.sql(text).collect()
        if isinstance(statement, Insert):
            return 0, 0, 0
        if not count_rows:
            return None
        row = count_rows[0].asDict()
        if isinstance(statement, MergeRows):
            return row["num_inserted_rows"], row["num_updated_rows"], row["num_deleted_rows"]
        affected = row["num_affected_rows"]
        return (0, affected, 0) if isinstance(statement, UpdateStatement) else (0, 0, affected)

    return run


@pytest.mark.spark
@pytest.mark.classic
@pytest.mark.sample(12)
@pytest.mark.parametrize("history", KNOWN_CONFLICTS.values(), ids=KNOWN_CONFLICTS.keys())
def test_known_conflicts_of_statements_of_sql(history: StatementHistory, run_sql: Run):
    play(history, run_sql)


@pytest.mark.spark
@pytest.mark.classic
@pytest.mark.sample(10)
@pytest.mark.parametrize("history", KNOWN_CONFLICTS.values(), ids=KNOWN_CONFLICTS.keys())
def test_known_conflicts_of_statements_of_sql_without_the_extension(
    history: StatementHistory, run_without_extension: Run
):
    play(history, run_without_extension)


@pytest.mark.spark
@pytest.mark.classic
@pytest.mark.long
def test_many_statements_of_sql_at_once_are_as_in_some_order(run_sql: Run):
    play_many(0, IN_SQL, lambda history: play(history, run_sql))
