"""Tables for loads, sources in files, and the expected result of a load: a left join without Spark."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from lance_spark import BackfillJobResult, Connection, Table
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.load.join import LoadJoin
from tests.strategies import facts

ROWS, FRAGMENT_ROWS = 30, 10

Acts: TypeAlias = Callable[[], object] | Mapping[int, Callable[[], object]]


def make_table(
    db: Connection,
    data: pa.Table,
    name: str = "t",
    *,
    fragment_rows: int = FRAGMENT_ROWS,
    stable: bool = True,
) -> Table:
    """Writes a table in fragments of ten rows."""
    lance.write_dataset(
        data,
        f"{db.uri}/{name}.lance",
        max_rows_per_file=fragment_rows,
        max_rows_per_group=fragment_rows,
        enable_stable_row_ids=stable,
    )
    return db.open_table(name)


def numbered(*, rows: int = ROWS, **columns: Any) -> pa.Table:
    """Returns rows of `id` 0, 1, ... with more columns."""
    return pa.table({"id": pa.array(range(rows), pa.int64()), **columns})


def of_ids(ids: Sequence[int], *, factor: int = 10, **columns: Any) -> pa.Table:
    """Returns a source of `id` and `v`, where `v` is `factor` times the id."""
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array([factor * i for i in ids], pa.int64()),
            **columns,
        }
    )


def write_file(data: pa.Table, path: Path) -> str:
    """Writes Parquet or an Arrow file, as the name says; a name with `stream` gets a stream of Arrow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".arrow", ".ipc", ".feather"):
        new = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
        with new(str(path), data.schema) as writer:
            writer.write_table(data, max_chunksize=7)
    else:
        pq.write_table(data, path, row_group_size=8)
    return str(path)


def left_join(
    before: pa.Table,
    source: pa.Table,
    keys: str | list[str],
    columns: Sequence[str],
    on_missing: str = "carry",
) -> pa.Table:
    """Returns the expected table after a load."""
    names = [keys] if isinstance(keys, str) else keys
    at = {key: number for number, key in enumerate(_keys(source, names))}
    matches = [None if None in key else at.get(key) for key in _keys(before, names)]
    for name in columns:
        source_column = source[name].combine_chunks()
        values = source_column.take(pa.array(matches, pa.int64()))
        if name not in before.schema.names:
            before = before.append_column(name, values)
            continue
        existing = before[name].combine_chunks()
        default = None if on_missing == "null" else 0
        indices = [
            None
            if row is None and default is None
            else number
            if row is None
            else len(existing) + row
            for number, row in enumerate(matches)
        ]
        both = pa.concat_arrays([existing, source_column.cast(existing.type)])
        before = before.set_column(
            before.schema.names.index(name), name, both.take(pa.array(indices, pa.int64()))
        )
    return before


def _keys(data: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(data[name].to_pylist() for name in names), strict=True))


def assert_same(actual: pa.Table, expected: pa.Table) -> None:
    """Asserts that tables have equal columns, types, and values in each row."""
    assert [(f.name, f.type) for f in actual.schema] == [(f.name, f.type) for f in expected.schema]
    for name in expected.schema.names:
        assert facts(actual[name]) == facts(expected[name]), name


def digests(uri: str) -> dict[str, str]:
    """Returns a digest of each data file of a table, by its name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(uri, "data").iterdir()
    }


@contextlib.contextmanager
def old_files_stay(table: Table) -> Iterator[None]:
    """Asserts that a load writes new files without changing existing files."""
    before = digests(table.uri)
    yield
    after = digests(table.uri)
    assert before.items() <= after.items()
    assert len(after) > len(before)


@contextlib.contextmanager
def nothing_changes(table: Table) -> Iterator[None]:
    """Asserts that a table keeps its version, its columns and its files."""
    before = (table.version, table.to_lance().schema, digests(table.uri))
    yield
    assert (table.version, table.to_lance().schema, digests(table.uri)) == before


def load(table: Table, *arguments: Any, **more: Any) -> BackfillJobResult:
    """Loads columns, and returns the result of the job."""
    return table.load_columns_async(*arguments, **more).result(120)


def values(table: Table, column: str = "v", key: str = "id") -> dict[int, Any]:
    """Returns a column by unique ids."""
    rows = table.to_arrow([key, column])
    keys: list[Any] = rows[key].to_pylist()
    by_key = dict(zip(keys, rows[column].to_pylist(), strict=True))
    assert len(by_key) == rows.num_rows
    return by_key


@dataclass(kw_only=True)
class Joins:
    """The rows of all joins so far by loads of this process.

    Attributes:
        before: Actions at the begin of a join, by its number from 0.
        after: Actions after the join's rows have arrived.
    """

    before: Mapping[int, Callable[[], object]]
    after: Mapping[int, Callable[[], object]]
    rows: list[int] = field(default_factory=list)


class _Collected:
    """Replaces a DataFrame with collected rows, so that an action can follow the collection."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def collect(self) -> list[Any]:
        return self._rows


@contextlib.contextmanager
def joins(
    *,
    before: Acts | None = None,
    after: Acts | None = None,
) -> Iterator[Joins]:
    """Runs actions in the driver right before or after joins: after the selecting tasks, before the writing tasks.

    A function alone acts at the first join.
    """
    acts = Joins(
        before={0: before} if callable(before) else before or {},
        after={0: after} if callable(after) else after or {},
    )
    real = LoadJoin.answers

    def answers(self: LoadJoin, spark: Any, spec: Any, todo: Mapping[int, Any], whole: Any) -> Any:
        number = len(acts.rows)
        acts.rows.append(sum(map(len, todo.values())))
        if number in acts.before:
            acts.before[number]()
        frame = real(self, spark, spec, todo, whole)
        if number not in acts.after:
            return frame
        rows = frame.collect()
        acts.after[number]()
        return _Collected(rows)

    with patch.object(LoadJoin, "answers", answers):
        yield acts


class Stop(BaseException):
    """Stands for the end of the driver's process."""


def stop() -> None:
    """Ends a job as the end of its process would."""
    raise Stop


@contextlib.contextmanager
def around_commits(
    *,
    before: Mapping[int, Callable[[], object]] = {},
    after: Mapping[int, Callable[[], object]] = {},
) -> Iterator[None]:
    """Lets something happen before or after the commits of values of a job, by their numbers from 0 on."""
    real, count = GroupCommits._commit, itertools.count()

    def commit(self: GroupCommits, group: Any) -> Any:
        number = next(count)
        if number in before:
            before[number]()
        outcome = real(self, group)
        if number in after:
            after[number]()
        return outcome

    with patch.object(GroupCommits, "_commit", commit):
        yield
    assert next(count) > max([*before, *after]), "a commit did not come"
