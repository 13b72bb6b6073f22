"""Histories of statements over one table: the effect of each statement on the rows, and a player that runs statements
concurrently.

A history is right if some serial order of the statements gives its rows and the counts that each statement reported.
The model of a statement is a pure function over a list of rows.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from unittest.mock import patch

import lance
import pyarrow as pa
from pyspark.sql import SparkSession

from lance_spark.commit.changes import CommitNote
from lance_spark.commit.rows import append_commit, row_commit
from lance_spark.dataset import DatasetRef
from lance_spark.dml import rounds
from lance_spark.dml.assignments import Assignments
from lance_spark.dml.clauses import MergeClauses
from lance_spark.dml.merge import Merge
from lance_spark.dml.results import ChangeResult
from lance_spark.dml.statement import Statement
from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError
from lance_spark.ingest.rows import write_rows
from lance_spark.write import row_write

Row = tuple[int | None, int]
"""A key, which may be NULL, and a value."""

Counts = tuple[int, int, int]
"""Rows inserted, updated and deleted."""

Moment = Literal["before", "after"]
"""Before or after a statement looks at the latest version in order to commit."""

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64())])


def data_of(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([{"k": key, "a": value} for key, value in rows], schema=SCHEMA)


# Statements


@dataclass(frozen=True, slots=True)
class Insert:
    rows: tuple[Row, ...]

    def apply(self, rows: list[Row]) -> tuple[list[Row], Counts]:
        return [*rows, *self.rows], (0, 0, 0)

    def run(self, ref: DatasetRef) -> None:
        write_rows(ref, data_of(self.rows), mode="append")

    def sql(self, table: str) -> str:
        return f"INSERT INTO {table} {_values(self.rows)}"


@dataclass(frozen=True, slots=True)
class MergeRows:
    rows: tuple[Row, ...]
    updates: bool
    inserts: bool

    def apply(self, rows: list[Row]) -> tuple[list[Row], Counts]:
        source_values = {key: value for key, value in self.rows if key is not None}
        present_keys = {key for key, _ in rows}
        matched = sum(key in source_values for key, _ in rows) if self.updates else 0
        changed = [
            (key, source_values.get(key, value) if self.updates and key is not None else value)
            for key, value in rows
        ]
        new = (
            [row for row in self.rows if row[0] is None or row[0] not in present_keys]
            if self.inserts
            else []
        )
        return [*changed, *new], (len(new), matched, 0)

    def run(self, ref: DatasetRef) -> ChangeResult:
        clauses = MergeClauses(on=("k",), updates=self.updates, inserts=self.inserts)
        merge = Merge(
            cast("SparkSession", None), ref.pin(None), clauses, data_of(self.rows), table_name="t"
        )
        return merge.run(CommitNote())

    def sql(self, table: str) -> str:
        matched = "WHEN MATCHED THEN UPDATE SET a = s.a " if self.updates else ""
        new = "WHEN NOT MATCHED THEN INSERT (k, a) VALUES (s.k, s.a)" if self.inserts else ""
        return f"MERGE INTO {table} t USING (SELECT * FROM ({_values(self.rows)}) s(k, a)) s ON t.k = s.k {matched}{new}"


@dataclass(frozen=True, slots=True)
class Condition:
    """Selects rows with given keys, or rows whose value is even or odd."""

    keys: tuple[int, ...] = ()
    parity: int | None = None

    @property
    def text(self) -> str:
        return (
            f"a % 2 = {self.parity}"
            if self.parity is not None
            else f"k IN ({', '.join(map(str, self.keys))})"
        )

    def holds(self, row: Row) -> bool:
        return row[1] % 2 == self.parity if self.parity is not None else row[0] in self.keys


@dataclass(frozen=True, slots=True)
class UpdateStatement:
    where: Condition
    column: Literal["k", "a"]
    step: int

    def apply(self, rows: list[Row]) -> tuple[list[Row], Counts]:
        changed = [self._changed(row) if self.where.holds(row) else row for row in rows]
        return changed, (0, sum(map(self.where.holds, rows)), 0)

    def _changed(self, row: Row) -> Row:
        key, value = row
        if self.column == "a":
            return key, value + self.step
        return (None if key is None else key + self.step), value

    def run(self, ref: DatasetRef) -> ChangeResult:
        sets = Assignments(
            where=self.where.text,
            values={},
            expressions={self.column: f"{self.column} + {self.step}"},
        )
        return Statement(
            cast("SparkSession", None),
            ref.pin(None),
            where=self.where.text,
            sets=sets,
            table_name="t",
        ).run()

    def sql(self, table: str) -> str:
        return f"UPDATE {table} SET {self.column} = {self.column} + {self.step} WHERE {self.where.text}"


@dataclass(frozen=True, slots=True)
class DeleteStatement:
    where: Condition

    def apply(self, rows: list[Row]) -> tuple[list[Row], Counts]:
        remaining = [row for row in rows if not self.where.holds(row)]
        return remaining, (0, 0, len(rows) - len(remaining))

    def run(self, ref: DatasetRef) -> ChangeResult:
        return Statement(
            cast("SparkSession", None),
            ref.pin(None),
            where=self.where.text,
            sets=None,
            table_name="t",
        ).run()

    def sql(self, table: str) -> str:
        return f"DELETE FROM {table} WHERE {self.where.text}"


@dataclass(frozen=True, slots=True)
class CompactStatement:
    def apply(self, rows: list[Row]) -> tuple[list[Row], Counts]:
        return rows, (0, 0, 0)

    def run(self, ref: DatasetRef) -> None:
        with contextlib.suppress(
            OSError, RuntimeError
        ):  # pylance gives up after a concurrent commit
            ref.open_latest().optimize.compact_files()

    def sql(self, table: str) -> None:
        return None


RowStatement = Insert | MergeRows | UpdateStatement | DeleteStatement | CompactStatement


def _values(rows: Sequence[Row]) -> str:
    return "VALUES " + ", ".join(
        f"(CAST({'NULL' if k is None else k} AS BIGINT), {a}L)" for k, a in rows
    )


# Histories


@dataclass(frozen=True, slots=True)
class StatementStep:
    """A statement, its branch, and the moment at which the next statement of the history runs."""

    statement: RowStatement
    moment: Moment = "before"
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class StatementHistory:
    """A table of some fragments, and concurrent statements over it.

    Attributes:
        rows: Rows of the table; the first `deleted` of them are deleted before the statements begin.
        in_threads: Whether each statement runs in its own thread. Otherwise the next statement runs inside the
            statement before it, at its moment.
    """

    rows: tuple[Row, ...]
    steps: tuple[StatementStep, ...]
    deleted: int = 0
    rows_per_fragment: int = 2
    stable: bool = True
    in_threads: bool = False


Run = Callable[[RowStatement, DatasetRef], Counts | None]
"""Runs a statement, and returns the counts if the statement reports any."""


def run_without_spark(statement: RowStatement, ref: DatasetRef) -> Counts:
    result = statement.run(ref)
    return (
        (0, 0, 0)
        if result is None
        else (result.rows_inserted, result.rows_updated, result.rows_deleted)
    )


class StatementPlayer:
    """Plays one history in a folder, and tells whether a serial order gives its result."""

    def __init__(self, history: StatementHistory, uri: str, run: Run = run_without_spark) -> None:
        self._history = history
        self._uri = uri
        self._run = run
        self._next: tuple[Moment, Callable[[], None]] | None = None
        self._done: list[tuple[StatementStep, Counts | None]] = []
        self._lock = threading.Lock()

    def play(self) -> None:
        """Raises an AssertionError with the history unless a serial order gives its result."""
        self._create()
        steps = self._history.steps
        if self._history.in_threads:
            barrier = threading.Barrier(len(steps))

            def run(step: StatementStep) -> None:
                barrier.wait()
                self._execute(step)

            with ThreadPoolExecutor(len(steps)) as pool:
                list(pool.map(run, steps))
        else:
            with self._gates():
                self._nested(steps)
        for branch in {step.branch for step in steps}:
            self._check(branch)

    def _create(self) -> None:
        history = self._history
        lance.write_dataset(
            data_of(history.rows),
            self._uri,
            max_rows_per_file=history.rows_per_fragment,
            enable_stable_row_ids=history.stable,
        )
        for number in range(history.deleted):
            key, value = history.rows[number]
            lance.dataset(self._uri).delete(
                f"a = {value} AND " + ("k IS NULL" if key is None else f"k = {key}")
            )
        for branch in {step.branch for step in history.steps} - {None}:
            lance.dataset(self._uri).create_branch(cast("str", branch))

    def _execute(self, step: StatementStep) -> None:
        ref = DatasetRef.find(self._uri, {}, step.branch)
        try:
            counts = self._run(step.statement, ref)
        except CommitOutcomeUnknownError:
            raise
        except CommitConflictError:  # nothing was committed, and the statement is in no order
            return
        with self._lock:
            self._done.append((step, counts))

    def _nested(self, steps: Sequence[StatementStep]) -> None:
        outer = self._next
        version = self._version(steps[0])
        self._next = (steps[0].moment, lambda: self._nested(steps[1:])) if len(steps) > 1 else None
        try:
            self._execute(steps[0])
        finally:
            late, self._next = self._next, outer
        if late is not None:
            # Only an `INSERT` of Spark commits without passing a gate. Other statements without a gate changed no rows,
            # and made no commit.
            assert isinstance(steps[0].statement, Insert) or self._version(steps[0]) == version, (
                "a commit passed no gate"
            )
            late[1]()

    def _version(self, step: StatementStep) -> int:
        return DatasetRef.find(self._uri, {}, step.branch).open_latest().version

    @contextlib.contextmanager
    def _gates(self) -> Iterator[None]:
        def gate(moment: Moment, real: Callable[..., Any]) -> Callable[..., Any]:
            def gated(*arguments: Any, **more: Any) -> Any:
                if self._next is not None and self._next[0] == moment:
                    act, self._next = self._next[1], None
                    act()
                return real(*arguments, **more)

            return gated

        places: list[tuple[Any, str, Moment]] = [
            (rounds, "commit_edits", "before"),
            (row_write, "commit_rows", "before"),
            (row_commit, "attempt_commit", "after"),
            (append_commit, "attempt_commit", "after"),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, moment in places:
                stack.enter_context(patch.object(owner, name, gate(moment, getattr(owner, name))))
            yield

    def _check(self, branch: str | None) -> None:
        history, table = self._history, DatasetRef.find(self._uri, {}, branch).open_latest()
        table.validate()
        rows = Counter((row["k"], row["a"]) for row in table.to_table().to_pylist())
        committed = [
            (step.statement, counts) for step, counts in self._done if step.branch == branch
        ]
        start = list(history.rows[history.deleted :])
        if any(_serial(start, order) == rows for order in itertools.permutations(committed)):
            return
        listing = "\n".join(f"  {statement}: {counts}" for statement, counts in committed)
        raise AssertionError(
            f"{history}\nends on branch {branch} with {sorted(rows.elements(), key=str)} after\n{listing}"
        )


def _serial(
    rows: list[Row], order: Sequence[tuple[RowStatement, Counts | None]]
) -> Counter[Row] | None:
    """Returns the rows after statements in an order, or None if a statement would have reported other counts."""
    for statement, counts in order:
        rows, expected = statement.apply(rows)
        if counts is not None and expected != counts:
            return None
    return Counter(rows)


def with_distinct_values(history: StatementHistory) -> StatementHistory:
    """Returns a history with distinct rows, so that the rows deleted first match the model's."""
    rows = tuple((key, number * 2 + value % 2) for number, (key, value) in enumerate(history.rows))
    return replace(history, rows=rows, deleted=min(history.deleted, len(rows)))
