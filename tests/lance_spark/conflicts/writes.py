"""Backfills of the DataFrame door between whose tasks and whose commit somebody else acts, in one process and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import lance
import pytest
from pyspark.sql.types import LongType

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import last_commit
from tests.lance_spark.conflicts.jobs import slipping_in
from tests.lance_spark.conflicts.others import (
    ROWS,
    Act,
    assert_indexes_agree,
    column,
    make_table,
    unused_files,
    work_of_others,
)
from tests.lance_spark.write.backfills import Backfill, computed, orphans, snapshot_rows

When = Literal["before", "slipped"]
"""When somebody else acts: before the committer looks at the head, or between its look and its commit."""

MOMENTS = pytest.mark.parametrize(
    ("when", "stable", "exclusive", "is_new"),
    [
        ("before", True, False, False),
        ("before", False, True, True),
        ("slipped", True, True, True),
        ("slipped", False, False, False),
    ],
    ids=["before", "before-addresses-new", "slipped-new", "slipped-addresses"],
)
"""Each moment with stable row ids and without, for a column that is there and one that is new. Tasks write whole column files (exclusive), or
runs of rows that the commit puts together."""

EXISTING = pytest.mark.parametrize(
    ("when", "stable", "exclusive"),
    [("before", True, False), ("before", False, True), ("slipped", True, True), ("slipped", False, False)],
    ids=["before", "before-addresses", "slipped", "slipped-addresses"],
)
"""The same for a column that is there."""

EXISTING_IN_SHORT = pytest.mark.parametrize(
    ("when", "stable", "exclusive"),
    [("before", False, True), ("slipped", True, False)],
    ids=["before-addresses", "slipped"],
)


def old(x: int) -> int:
    """What rows have before the write, in a column that exists."""
    return -x - 1


def ours(x: int) -> int:
    """What the write computes."""
    return x * 10


@dataclass(kw_only=True)
class Written:
    """A table, and a write to its column `v` that has run its tasks.

    Attributes:
        path: Location of the table.
        theirs: Everything but the target, by id, right after somebody else acted.
        result: What the commit said.
    """

    path: str
    theirs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    result: CommitResult | None = None

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
        result = self.result
        assert result is not None
        now = work_of_others(self.path)
        assert now == self.theirs, "the other writer's work is not as it was left"
        x = "x" if "x" in lance.dataset(self.path).schema.names else "renamed_x"
        right = {i: changed[i] if changed and i in changed else ours(row[x]) for i, row in now.items()}
        assert column(self.path, name) == right
        assert_indexes_agree(self.path, name)
        assert orphans(self.path) == set() and unused_files(self.path) == set()
        assert last_commit(self.path) == result
        assert result.rows + result.rows_gone + result.rows_nulled == rows


def make(path: str, *, stable: bool = True, is_new: bool = False, indexed: bool = False) -> None:
    """Makes the table, with the column `v`, filled by an earlier write, if it is not new."""
    make_table(path, stable=stable)
    if not is_new:
        Backfill(path, "v", LongType()).run(computed(snapshot_rows(path, key="x"), old))
        if indexed:
            lance.dataset(path).create_scalar_index("v", "BTREE", name="of v")


def write_while(
    path: str,
    act: Act,
    when: When,
    *,
    exclusive: bool = True,
    rows: Callable[[int], bool] = lambda x: True,
    options: Mapping[str, str] | None = None,
) -> Written:
    """Writes `ours(x)` to the rows of the latest version, and lets somebody else act before the commit. Its errors are raised."""
    written = Written(path=path)
    told = {"input_columns": "x", **(options or {})}
    job = Backfill(path, "v", LongType(), options=told, spec={"exclusive": exclusive})
    given = computed([(address, x) for address, x in snapshot_rows(path, key="x") if rows(x)], ours)
    parts: Iterable[Any] = (given,) if exclusive else (given[::2], given[1::2])
    messages = [job.task([job.batch(*zip(*part, strict=True))]) for part in parts]

    def observed(uri: str) -> None:
        act(uri)
        written.theirs = work_of_others(uri) if Path(uri, "_versions").exists() else {-1: {}}

    if when == "before":
        observed(path)
        written.result = job.commit(*messages)
    else:
        with slipping_in(path, observed):
            written.result = job.commit(*messages)
        assert written.theirs, "nothing was committed"
    return written
