"""Backfills by a DataFrame write, between whose tasks and whose commit a concurrent writer acts, in
one process and without Spark.
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
from tests.lance_spark.conflicts.cases import Case, Column, Done, Moment, Refused
from tests.lance_spark.conflicts.jobs import slipping_in
from tests.lance_spark.conflicts.others import (
    ROWS,
    Act,
    Others,
    assert_indexes_agree,
    assert_says_what_happened,
    cast_target,
    column,
    make_table,
    unused_files,
)
from tests.lance_spark.write.backfills import Backfill, computed, orphans, snapshot_rows

Layout = Literal["runs", "direct"]
"""Whether tasks write runs of rows that the commit puts together, or whole column files."""


def old(x: int) -> int:
    """What rows have before the write, in a column of an earlier write."""
    return -x - 1


def ours(x: int) -> int:
    """What the write computes."""
    return x * 10


@dataclass(kw_only=True)
class Written:
    """A table, and a write to its column `v`.

    Attributes:
        path: Location of the table.
        others: What the table had of others, right after the concurrent writer.
        result: What the commit said.
    """

    path: str
    others: Others
    result: CommitResult

    def counted(self, *names: str) -> dict[str, int]:
        """Returns counters of the result."""
        return {name: getattr(self.result, name) for name in names}

    def check(self, changed: Mapping[int, int | None] | None = None, *, rows: int = ROWS, name: str = "v") -> None:
        """Asserts what holds after every write, whatever others did meanwhile.

        Args:
            changed: Values, by id, of rows that do not have the write's value.
            rows: Rows that were written.
            name: The target's name by now.
        """
        result, changed = self.result, changed or {}
        now = Others.at(self.path)
        assert now == self.others, "the other writer's work is not as it was left"
        assert column(self.path, name) == {i: changed[i] if i in changed else ours(now.x(i)) for i in now.rows}
        assert_indexes_agree(self.path, name)
        assert orphans(self.path) == set() and unused_files(self.path) == set()
        assert last_commit(self.path) == result or not result.fragments
        assert result.version == lance.dataset(self.path).version
        assert result.rows + result.rows_gone + result.rows_nulled == rows


def make(path: str, *, stable: bool = True, kind: Column = "ours", indexed: bool = False) -> None:
    """Makes the table, with the column `v` if it is not to be new."""
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
) -> Written:
    """Writes `ours(x)` to the rows of the latest version, and lets a concurrent writer act before
    the commit. Its errors are raised.
    """
    others: list[Others] = []
    settings = {"input_columns": "x", **(options or {})}
    job = Backfill(path, "v", LongType(), options=settings, spec={"exclusive": layout == "direct"})
    given = computed([(address, x) for address, x in snapshot_rows(path, key="x") if rows(x)], ours)
    parts: Iterable[Any] = (given,) if layout == "direct" else (given[::2], given[1::2])
    messages = [job.task([job.batch(*zip(*part, strict=True))]) for part in parts]

    def observed(uri: str) -> None:
        act(uri)
        others.append(Others.at(uri))

    if moment == "before":
        observed(path)
        result = job.commit(*messages)
    else:
        slip = {"slipped": slipping_in, "adding": _slipping_in_before_the_column}[moment]
        with slip(path, observed):
            result = job.commit(*messages)
    assert others, "the concurrent writer did not act"
    return Written(path=path, others=others[0], result=result)


@contextlib.contextmanager
def _slipping_in_before_the_column(uri: str, act: Act) -> Iterator[None]:
    """Lets a concurrent writer act after the committer looked at the latest version, and before it
    adds the new column.
    """
    real, acts = lance.LanceDataset.add_columns, [act]

    def late(self: lance.LanceDataset, *arguments: Any, **more: Any) -> Any:
        if acts:
            acts.pop()(uri)
        return real(self, *arguments, **more)

    with patch.object(lance.LanceDataset, "add_columns", late):
        yield


def check_case(path: str, case: Case, moment: Moment, *, stable: bool, layout: Layout, kind: Column) -> None:
    """Writes beside a row of the table of conflicts, and asserts what the row says."""
    make(path, stable=stable, kind=kind, indexed=case.act is not cast_target)
    if isinstance(case.expected, Refused):
        refused(path, case.act, moment, case.expected, layout=layout, options=case.options)
        return
    written = write_while(path, case.act, moment, layout=layout, options=case.options)
    check_done(written, case.expected, kind)


def check_done(written: Written, done: Done, kind: Column) -> None:
    """Asserts what a row of the table says of a write that has ended well."""
    counters = {name: number for name, number in done.counters.items() if name != "rows_recomputed"}
    assert written.counted(*counters) == counters
    assert done.fragments_gone in (None, written.result.fragments_gone)
    before = {i: old(i) if kind == "ours" else None for i in done.old}
    written.check({**dict.fromkeys(done.null), **before, **done.given}, name=done.column)


def refused(path: str, act: Act, moment: Moment, refused: Refused, **more: Any) -> LanceSparkError:
    """Asserts that a write is refused, and that the table is as the others left it, with no file of
    ours.
    """
    versions: list[int] = []
    left: list[Any] = []

    def noted(uri: str) -> None:
        versions.append(lance.dataset(uri).version)
        act(uri)
        versions.append(lance.dataset(uri).version)
        left.extend((Others.at(uri), lance.dataset(uri).to_table().to_pylist()))

    with pytest.raises(refused.error, match=refused.said) as caught:
        write_while(path, noted, moment, **more)
    assert path in str(caught.value)
    head = lance.dataset(path)
    assert [Others.at(path), head.to_table().to_pylist()] == left
    assert orphans(path) == set() and unused_files(path) == set()
    assert caught.value.retryable == issubclass(refused.error, CommitConflictError)
    if refused.fragments is not None:
        assert isinstance(caught.value, CommitConflictError) and caught.value.fragments == refused.fragments
    if refused.error is CommitImpossibleError:
        assert head.version == versions[1], "something was committed"
    if refused.error is CommitImpossibleError and refused.dated:
        assert_says_what_happened(str(caught.value), path, range(versions[0] + 1, versions[1] + 1))
    return caught.value
