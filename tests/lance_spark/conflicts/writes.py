"""Backfills by a DataFrame write, in one process without Spark. A concurrent writer acts between the tasks and the
commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import last_commit
from lance_spark.errors import CommitConflictError, CommitImpossibleError, LanceSparkError
from tests.lance_spark.conflicts.cases import Case, Column, Completed, Moment, Refused
from tests.lance_spark.conflicts.jobs import slipping_in
from tests.lance_spark.conflicts.others import (
    ROWS,
    Act,
    ForeignState,
    assert_indexes_agree,
    assert_says_what_happened,
    cast_target,
    column,
    make_table,
    unused_files,
)
from tests.lance_spark.write.backfills import Backfill, computed, orphans, snapshot_rows

Layout = Literal["runs", "direct"]
"""Whether tasks write runs of rows for the commit to assemble, or whole column files."""


def old(x: int) -> int:
    """The rows' values before the write, in a column of an earlier write."""
    return -x - 1


def ours(x: int) -> int:
    """The value computed by the write."""
    return x * 10


@dataclass(kw_only=True)
class WriteOutcome:
    """A table, and a write to its column `v`.

    Attributes:
        path: Location of the table.
        others: The foreign state of the table right after the concurrent writer's change.
        result: The result of the commit.
    """

    path: str
    others: ForeignState
    result: CommitResult

    def counters(self, *names: str) -> dict[str, int]:
        """Returns counters of the result."""
        return {name: getattr(self.result, name) for name in names}

    def check(
        self, changed: Mapping[int, int | None] | None = None, *, rows: int = ROWS, name: str = "v"
    ) -> None:
        """Asserts the state after any write, regardless of concurrent changes.

        Args:
            changed: Values other than the write's own, by id.
            rows: Number of written rows.
            name: The target's present name.
        """
        result, changed = self.result, changed or {}
        current = ForeignState.at(self.path)
        assert current == self.others, "the other writer's work is not as it was left"
        assert column(self.path, name) == {
            i: changed[i] if i in changed else ours(current.x(i)) for i in current.rows
        }
        assert_indexes_agree(self.path, name)
        assert orphans(self.path) == set() and unused_files(self.path) == set()
        assert last_commit(self.path) == result or not result.fragments
        assert result.version == lance.dataset(self.path).version
        assert result.rows + result.rows_gone + result.rows_nulled == rows


def make(path: str, *, stable: bool = True, kind: Column = "ours", indexed: bool = False) -> None:
    """Makes the table, with the column `v` unless the write adds it."""
    make_table(path, stable=stable)
    if kind == "theirs":
        lance.dataset(path).add_columns(pa.schema([("v", pa.int64())]))
    if kind == "ours":
        Backfill(path, "v", LongType()).run(computed(snapshot_rows(path, key="x"), old))
    if indexed and kind != "new":
        lance.dataset(path).create_scalar_index("v", "BTREE", name="of v")


def write_while(
    path: str,
    act: Act,
    moment: Moment,
    *,
    layout: Layout = "direct",
    rows: Callable[[int], bool] = lambda x: True,
    options: Mapping[str, str] | None = None,
) -> WriteOutcome:
    """Writes `ours(x)` to the rows of the latest version, and lets a concurrent writer act before the commit. Its
    errors are raised.
    """
    states: list[ForeignState] = []
    settings = {"input_columns": "x", **(options or {})}
    job = Backfill(path, "v", LongType(), options=settings, spec={"exclusive": layout == "direct"})
    rows_written = computed(
        [(address, x) for address, x in snapshot_rows(path, key="x") if rows(x)], ours
    )
    parts: Iterable[Any] = (
        (rows_written,) if layout == "direct" else (rows_written[::2], rows_written[1::2])
    )
    messages = [job.task([job.batch(*zip(*part, strict=True))]) for part in parts]

    def observed(uri: str) -> None:
        act(uri)
        states.append(ForeignState.at(uri))

    if moment == "before":
        observed(path)
        result = job.commit(*messages)
    else:
        slip = {"slipped": slipping_in, "adding": _slipping_in_before_the_column}[moment]
        with slip(path, observed):
            result = job.commit(*messages)
    assert states, "the concurrent writer did not act"
    return WriteOutcome(path=path, others=states[0], result=result)


@contextlib.contextmanager
def _slipping_in_before_the_column(uri: str, act: Act) -> Iterator[None]:
    """Lets a concurrent writer act between the committer's look at the latest version and the addition of the new
    column.
    """
    real, acts = lance.LanceDataset.add_columns, [act]

    def late(self: lance.LanceDataset, *arguments: Any, **more: Any) -> Any:
        if acts:
            acts.pop()(uri)
        return real(self, *arguments, **more)

    with patch.object(lance.LanceDataset, "add_columns", late):
        yield


def check_case(
    path: str, case: Case, moment: Moment, *, stable: bool, layout: Layout, kind: Column
) -> None:
    """Writes with the concurrent change of a row of the table of conflicts, and asserts the expected outcome."""
    make(path, stable=stable, kind=kind, indexed=case.act is not cast_target)
    if isinstance(case.expected, Refused):
        check_refused(path, case.act, moment, case.expected, layout=layout, options=case.options)
        return
    outcome = write_while(path, case.act, moment, layout=layout, options=case.options)
    check_done(outcome, case.expected, kind)


def check_done(outcome: WriteOutcome, expected: Completed, kind: Column) -> None:
    """Asserts the expected outcome of a successful write."""
    counters = {
        name: number for name, number in expected.counters.items() if name != "rows_recomputed"
    }
    assert outcome.counters(*counters) == counters
    assert expected.fragments_gone in (None, outcome.result.fragments_gone)
    before = {i: old(i) if kind == "ours" else None for i in expected.old}
    outcome.check(
        {**dict.fromkeys(expected.null), **before, **expected.foreign}, name=expected.column
    )


def check_refused(
    path: str, act: Act, moment: Moment, expected: Refused, **more: Any
) -> LanceSparkError:
    """Asserts that a write fails, and that the table stays as the other writers left it, without files of this
    package.
    """
    versions: list[int] = []
    after: list[Any] = []

    def observed(uri: str) -> None:
        versions.append(lance.dataset(uri).version)
        act(uri)
        versions.append(lance.dataset(uri).version)
        after.extend((ForeignState.at(uri), lance.dataset(uri).to_table().to_pylist()))

    with pytest.raises(expected.error, match=expected.message) as caught:
        write_while(path, observed, moment, **more)
    assert path in str(caught.value)
    head = lance.dataset(path)
    assert [ForeignState.at(path), head.to_table().to_pylist()] == after
    assert orphans(path) == set() and unused_files(path) == set()
    assert caught.value.retryable == issubclass(expected.error, CommitConflictError)
    if expected.fragments is not None:
        assert (
            isinstance(caught.value, CommitConflictError)
            and caught.value.fragments == expected.fragments
        )
    if expected.error is CommitImpossibleError:
        assert head.version == versions[1], "something was committed"
    if expected.error is CommitImpossibleError and expected.dated:
        assert_says_what_happened(str(caught.value), path, range(versions[0] + 1, versions[1] + 1))
    return caught.value
