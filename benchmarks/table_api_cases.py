"""The cases of the table API: contestants, each with its own table, and their work."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import lance
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

import lance_spark
from benchmarks.table_api_child import Child
from benchmarks.table_api_memory import plain_kind, ray_kind, spark_kind
from benchmarks.table_api_work import (
    BUSY,
    DOUBLE,
    EMBED,
    UTF8_LENGTH,
    WIDTH,
    Work,
    commit,
    make_table,
)
from lance_spark.errors import BackfillIncompleteError
from lance_spark.jobs.results import BackfillJobResult
from udf_runtime import udf

OURS = "lance-spark"
ROWS = 2_000_000
LARGE_ROWS = 16_000_000
BUSY_ROWS = 400_000
SMALL_ROWS = 100
WIDE_ROWS = 1_000_000
LONG_ROWS = 10_000_000
FRAGMENTS = 8
CORES = 2
GIB = 1 << 30

_FIXED_S = 0.5
"""Allowance for a backfill beyond the sum of its parts: a Spark job, two commits of the history,
and the checks before the start."""


class Contestant(ABC):
    """A contestant that fills a column of its own table.

    Attributes:
        cores: Number of computing processes.
        kind_of: Returns the kind of a process.
    """

    cores = CORES
    kind_of: Callable[[psutil.Process, int], str] = staticmethod(plain_kind)

    def __init__(self, folder: Path, work: Work) -> None:
        self.folder = folder
        self.path = str(folder / "table.lance")
        self.work = work
        self.column: str | None = None
        self._numbers = itertools.count()

    def prepare(self) -> None:
        """Adds an empty column instead of the filled column. Not timed."""
        if self.column is not None:
            self.drop(self.column)
        self.column = f"{self.work.name}_{next(self._numbers)}"
        self.add(self.column)

    def add(self, column: str) -> None:
        """Adds a column without values."""
        lance.dataset(self.path).add_columns(pa.schema([pa.field(column, self.work.data_type)]))

    def drop(self, column: str) -> None:
        """Drops a column, and deletes its files unless a version references them."""
        lance.dataset(self.path).drop_columns([column])

    @abstractmethod
    def run(self) -> object:
        """Fills the column. Timed."""

    def roots(self) -> list[int]:
        """Returns the processes that compute, or whose descendants compute; none if unknown in
        advance."""
        return []

    def missing_rows(self) -> int:
        """Returns the number of rows without a value."""
        return lance.dataset(self.path).count_rows(f"{self.column} IS NULL")

    def values(self) -> pa.ChunkedArray:
        """Returns the values of the column."""
        return lance.dataset(self.path).to_table(columns=[str(self.column)]).column(0)


class Ours(Contestant):
    """The table API on a session of this process.

    Attributes:
        result: Result of the last run.
    """

    kind_of = staticmethod(spark_kind)

    def __init__(self, folder: Path, work: Work, spark: SparkSession, **arguments: int) -> None:
        super().__init__(folder, work)
        self.result: BackfillJobResult | None = None
        self._table = lance_spark.connect(str(folder), spark, progress=False).open_table("table")
        self._arguments = arguments

    def add(self, column: str) -> None:
        # A separate version, so values of an earlier column are not reused.
        function = udf(self.work.function(), data_type=self.work.data_type, version=column)
        self._table.add_columns({column: function})

    def drop(self, column: str) -> None:
        self._table.drop_columns(column)

    def run(self) -> BackfillJobResult:
        self.result = self._table.backfill(str(self.column), **self._arguments)  # type: ignore[arg-type]
        return self.result

    def roots(self) -> list[int]:
        return [os.getpid()]


class Resumed(Ours):
    """The table API after a UDF failure on the last batch: all other values come from checkpoints."""

    def prepare(self) -> None:
        super().prepare()
        with suppress(BackfillIncompleteError):
            self.run()
        self._cured.touch()

    def add(self, column: str) -> None:
        compute, cured = self.work.function(), str(self._cured)
        last = lance.dataset(self.path).count_rows() - 1

        def fails_at_first(id: pa.Array) -> pa.Array:
            if id[-1].as_py() == last and not os.path.exists(cured):
                raise ValueError("not yet")
            return compute(id)

        self._table.add_columns(
            {column: udf(fails_at_first, data_type=self.work.data_type, version=column)}
        )

    @property
    def _cured(self) -> Path:
        return self.folder / f"{self.column}-cured"


class Loop(Contestant):
    """A single process with plain pylance: reads, computes, writes a column file per fragment, and
    commits once."""

    cores = 1

    def __init__(self, folder: Path, work: Work, child: Child) -> None:
        super().__init__(folder, work)
        self._child = child

    def run(self) -> object:
        return self._child.ask(path=self.path, column=self.column, work=self.work.name, commit=True)

    def roots(self) -> list[int]:
        return [self._child.pid]


class TwoLoops(Contestant):
    """A process per core with plain pylance, each with a share of the fragments: the sum of the
    parts."""

    def roots(self) -> list[int]:
        return [child.pid for child in self._children]

    def __init__(self, folder: Path, work: Work, children: list[Child]) -> None:
        super().__init__(folder, work)
        self._children = children

    def run(self) -> object:
        from concurrent.futures import ThreadPoolExecutor

        def share(number: int) -> list[tuple[int, str]]:
            fragments = list(range(number, FRAGMENTS, len(self._children)))
            question = {"path": self.path, "column": self.column, "work": self.work.name}
            return self._children[number].ask(**question, fragments=fragments, commit=False)

        with ThreadPoolExecutor(len(self._children)) as pool:
            files = [file for part in pool.map(share, range(len(self._children))) for file in part]
        commit(self.path, files)
        return files


class Geneva(Contestant):
    """The PyPI package geneva, on its own Ray, in a process of its own environment. The process
    runs until closed."""

    kind_of = staticmethod(ray_kind)

    def __init__(self, folder: Path, work: Work, child: Child) -> None:
        super().__init__(folder, work)
        self._child = child

    def add(self, column: str) -> None:
        self._ask("add", column)

    def run(self) -> object:
        return self._ask("backfill", str(self.column))

    def roots(self) -> list[int]:
        return [self._child.pid]

    def _ask(self, what: str, column: str) -> object:
        return self._child.ask(do=what, folder=str(self.folder), work=self.work.name, column=column)


class Cold(Contestant):
    """A new process per run: imports, the start of Spark or Ray, and the backfill of a small table."""

    def __init__(self, folder: Path, python: str, kind: str) -> None:
        super().__init__(folder, DOUBLE)
        self.column = "cold"
        self._start = functools.partial(Child, python, f"cold-{kind}", str(folder))

    def prepare(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        make_table(self.folder / "table.lance", SMALL_ROWS, 1)

    def run(self) -> float:
        began = time.perf_counter()
        child = self._start()
        try:
            child.answer()
            return time.perf_counter() - began
        finally:
            child.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCase:
    """A case to measure.

    Attributes:
        name: Short name.
        note: Description of the work.
        contestants: The contestants by name; must include `lance-spark`.
        rows: Number of computed rows.
        again: Whether the column is filled before the timed run.
        target: Maximum ratio to `versus`, after subtracting `fixed_s`; in seconds if `versus` is
            `seconds`.
        versus: The contestant of the target.
        fixed_s: Seconds to subtract from our time before the division.
        worker_bytes: Maximum memory of a worker.
        rounds: Maximum number of timed rounds. The first, untimed round measures memory.
    """

    name: str
    note: str
    contestants: Mapping[str, Contestant]
    rows: int
    again: bool = False
    target: float | None = None
    versus: str = "loop"
    fixed_s: float = 0.0
    worker_bytes: int | None = None
    rounds: int = 100
    own_clock: frozenset[str] = field(default_factory=frozenset)


class TableApiCases:
    """Shared resources of the cases: folders, the session, and processes. They end with the
    context."""

    def __init__(self, folder: Path, scale: float, geneva: str | None) -> None:
        self._folder = folder
        self._scale = scale
        self._geneva = geneva
        self._numbers = itertools.count()
        self._ends = ExitStack()
        self._templates: dict[tuple[int, int], Path] = {}

    def __enter__(self) -> TableApiCases:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def rows(self, rows: int) -> int:
        """Returns the number of rows of a table at the requested scale."""
        return max(int(rows * self._scale), FRAGMENTS)

    def table(self, rows: int, fragments: int) -> Path:
        """Returns a folder with a new copy of a table."""
        if (rows, fragments) not in self._templates:
            template = self._folder / f"template-{rows}-{fragments}"
            maker = Child(sys.executable, "table", str(template), str(rows), str(fragments))
            maker.answer()
            maker.close()
            self._templates[rows, fragments] = template
        folder = self._folder / f"{next(self._numbers)}"
        shutil.copytree(self._templates[rows, fragments], folder / "table.lance")
        return folder

    def child(self, python: str, kind: str) -> Child:
        """Starts a contestant. It runs until the context ends or it is closed."""
        child = Child(python, kind)
        self._ends.callback(child.close)
        return child

    def warm(self, spark: SparkSession) -> None:
        """Warms the session up: its first job starts Python workers, which import Lance and Arrow."""
        warmer = Ours(self.table(FRAGMENTS * CORES, FRAGMENTS * CORES), DOUBLE, spark)
        warmer.prepare()
        warmer.run()

    def cases(self, spark: SparkSession) -> Iterator[TableCase]:
        """Yields the cases. The tables of a case are deleted before the next case."""
        for group in (
            self._memory(spark),
            self._without_geneva(spark),
            self._beside_geneva(spark),
            self._cold(),
        ):
            for case in group:
                yield case
                for contestant in case.contestants.values():
                    shutil.rmtree(contestant.folder, ignore_errors=True)

    def _memory(self, spark: SparkSession) -> Iterator[TableCase]:
        rows, long_rows = self.rows(WIDE_ROWS), self.rows(LONG_ROWS)
        wide = f"{rows:,} vectors of {WIDTH} floats in one fragment"

        def case(name: str, note: str, contestant: Ours, rows: int) -> TableCase:
            return TableCase(
                name=name,
                note=note,
                rows=rows,
                contestants={OURS: contestant},
                worker_bytes=GIB,
                rounds=0,
            )

        def table() -> Path:
            return self.table(rows, 1)

        yield case(
            "wide output, one range", wide, Ours(table(), EMBED, spark, task_size=rows), rows
        )
        cut = rows // 4
        yield case(
            "wide output, ranges",
            f"{wide}, task_size={cut:,}",
            Ours(table(), EMBED, spark, task_size=cut),
            rows,
        )
        resumed = Resumed(table(), EMBED, spark, task_size=rows)
        yield case(
            "wide output, resumed",
            f"{wide}, all but the last batch from checkpoints",
            resumed,
            rows,
        )
        long = Ours(self.table(long_rows, 1), UTF8_LENGTH, spark, task_size=long_rows)
        yield case(
            "long fragment, one range",
            f"the length of {long_rows:,} texts in one fragment",
            long,
            long_rows,
        )

    def _without_geneva(self, spark: SparkSession) -> Iterator[TableCase]:
        loops = [self.child(sys.executable, "loop") for _ in range(CORES)]

        def contestants(
            rows: int, fragments: int, work: Work, *, parts: bool = False
        ) -> dict[str, Contestant]:
            def table() -> Path:
                return self.table(rows, fragments)

            both: dict[str, Contestant] = {
                OURS: Ours(table(), work, spark),
                "loop": Loop(table(), work, loops[0]),
            }
            return both | ({"parts": TwoLoops(table(), work, loops)} if parts else {})

        yield TableCase(
            name="small table, warm",
            note=f"id * 2 of {SMALL_ROWS} rows",
            rows=SMALL_ROWS,
            contestants=contestants(SMALL_ROWS, 1, DOUBLE),
            target=0.5,
            versus="seconds",
        )
        yield TableCase(
            name="nothing to do",
            note=f"the same column of {self.rows(ROWS):,} rows again",
            rows=self.rows(ROWS),
            contestants={OURS: Ours(self.table(self.rows(ROWS), FRAGMENTS), DOUBLE, spark)},
            again=True,
            target=1.0,
            versus="seconds",
        )
        for work, rows in ((UTF8_LENGTH, ROWS), (DOUBLE, ROWS), (UTF8_LENGTH, LARGE_ROWS)):
            kind = "scalar" if work.scalar else "vectorised"
            yield TableCase(
                name=f"{kind} UDF, {self.rows(rows) / 1e6:g} M rows",
                note=f"{work.name}({work.column}), {FRAGMENTS} fragments; beyond {_FIXED_S} s, beside {CORES} loops at once",
                rows=self.rows(rows),
                contestants=contestants(self.rows(rows), FRAGMENTS, work, parts=True),
                target=1.15,
                versus="parts",
                fixed_s=_FIXED_S,
            )
        yield TableCase(
            name="CPU-bound UDF",
            note=f"about 20 microseconds of Python a row, {self.rows(BUSY_ROWS):,} rows in {FRAGMENTS} fragments",
            rows=self.rows(BUSY_ROWS),
            contestants=contestants(self.rows(BUSY_ROWS), FRAGMENTS, BUSY),
            target=1 / 1.6,
            rounds=3,
        )
        for child in loops:
            child.close()

    def _beside_geneva(self, spark: SparkSession) -> Iterator[TableCase]:
        if self._geneva is None:
            return
        child = self.child(self._geneva, "geneva")
        for name, work, rows, fragments, again, target in (
            (
                "vectorised UDF, beside geneva",
                UTF8_LENGTH,
                self.rows(ROWS),
                FRAGMENTS,
                False,
                1 / 6,
            ),
            ("scalar UDF, beside geneva", DOUBLE, self.rows(ROWS), FRAGMENTS, False, 1 / 6),
            ("small table, beside geneva", DOUBLE, SMALL_ROWS, 1, False, None),
            ("nothing to do, beside geneva", DOUBLE, SMALL_ROWS, 1, True, None),
        ):
            yield TableCase(
                name=name,
                note=f"{work.name}({work.column}) of {rows:,} rows{', again' if again else ''}",
                rows=rows,
                contestants={
                    OURS: Ours(self.table(rows, fragments), work, spark),
                    "geneva": Geneva(self.table(rows, fragments), work, child),
                },
                again=again,
                target=target,
                versus="geneva",
                rounds=3,
            )
        child.close()

    def _cold(self) -> Iterator[TableCase]:
        pythons = {OURS: sys.executable} | (
            {} if self._geneva is None else {"geneva": self._geneva}
        )
        contestants = {
            name: Cold(self.table(SMALL_ROWS, 1), python, name) for name, python in pythons.items()
        }
        yield TableCase(
            name="cold start",
            note=f"a new process, until {SMALL_ROWS} rows are filled",
            rows=SMALL_ROWS,
            contestants=contestants,
            target=None if self._geneva is None else 0.5,
            versus="geneva",
            rounds=2,
            own_clock=frozenset(contestants),
        )
