"""A source, a view of it, and the expected rows of the view, computed in plain Python."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa

from lance_spark import Connection, Table
from lance_spark.jobs.results import RefreshJobResult
from tests.support.logs import Log
from udf_runtime import UDF

ID = "__source_row_id"
WHERE = "k % 2 = 0"

Rows = list[dict[str, Any]]
Change = Callable[[dict[str, Any]], None]


def rows_of(keys: range | list[int]) -> Rows:
    """Rows of a source: `x` is the UDF's input, the view also selects `p`, and ignores `u`."""
    return [{"k": k, "x": 10 * k, "p": k, "u": k} for k in keys]


def make_source(
    db: Connection, keys: range | list[int] = range(20), *, name: str = "s", **options: Any
) -> Table:
    schema = pa.schema([(column, pa.int64()) for column in ("k", "x", "p", "u")])
    return db.create_table(name, pa.Table.from_pylist(rows_of(keys), schema=schema), **options)


def forge(view: Table, change: Change) -> None:
    """Changes what is stored of a view, as any writer of its folder can."""
    dataset = lance.dataset(view.uri)
    metadata = {key.decode(): text.decode() for key, text in dataset.schema.metadata.items()}
    values = json.loads(metadata["lance-spark:view"])
    change(values)
    dataset.update_schema_metadata(
        metadata | {"lance-spark:view": json.dumps(values)}, replace=True
    )


@dataclass(frozen=True)
class SourceAndView:
    """A view `v` of a table `s`: `k`, twice `p`, and `y` by a UDF that logs each `x`."""

    source: Table
    view: Table
    log: Log

    def at(self, version: int | None = None) -> Rows:
        """Returns the expected rows of the view for a version of its source, by row id."""
        dataset = lance.dataset(self.source.uri, version=version)
        rows = dataset.to_table(with_row_id=True, filter=WHERE).to_pylist()
        expected = [
            {ID: row["_rowid"], "k": row["k"], "p2": double(row["p"]), "y": double(row["x"])}
            for row in rows
        ]
        return sorted(expected, key=by_id)

    def inputs(self, version: int | None = None) -> dict[int, Any]:
        """Returns the UDF's input of each row of the view, by row id, at a version of the source."""
        rows = (
            lance.dataset(self.source.uri, version=version)
            .to_table(with_row_id=True, filter=WHERE)
            .to_pylist()
        )
        return {row["_rowid"]: row["x"] for row in rows}

    def rows_shown(self) -> Rows:
        return rows_shown(self.view)

    def check(self, version: int | None = None) -> None:
        """Asserts that the view shows a version of its source."""
        assert self.rows_shown() == self.at(version)

    def refresh(self, calls: list[int] | None = None, **options: Any) -> RefreshJobResult:
        """Refreshes, and asserts the rows of the view and the `x` of the UDF's calls."""
        result = self.view.refresh(**options)
        assert result.status == "DONE"
        self.check(result.source_version)
        called_rows = self.log.take()
        if calls is not None:
            assert called_rows == sorted(calls)
            assert result.rows_computed == len(calls)
        return result

    def change(self, values: dict[str, str], where: str | None = None) -> None:
        """Updates the source."""
        self.source.to_lance().update(values, where=where)

    def delete(self, where: str) -> None:
        self.source.to_lance().delete(where)


def double(value: int | None) -> int | None:
    return None if value is None else 2 * value


def by_id(row: dict[str, Any]) -> Any:
    return row[ID]


def rows_shown(view: Table) -> Rows:
    """Returns the rows of a view by row id, and asserts that they are unique."""
    rows: Rows = sorted(view.to_lance().to_table().to_pylist(), key=by_id)
    ids = [row[ID] for row in rows]
    assert len(ids) == len(set(ids)), "rows are doubled"
    return rows


def watched(
    db: Connection,
    log: Log,
    keys: range | list[int] = range(20),
    *,
    doubling: UDF | None = None,
    refreshed: bool = True,
    **options: Any,
) -> SourceAndView:
    """Makes a source and a view of it."""
    source = make_source(db, keys, **options)
    query = (
        source.search(None)
        .select({"k": "k", "p2": "p * 2", "y": doubling or log.doubling()})
        .where(WHERE)
    )
    pair = SourceAndView(source=source, view=db.create_materialized_view("v", query), log=log)
    if refreshed:
        pair.refresh()
    return pair


def selected(keys: range | list[int]) -> list[int]:
    """Returns the UDF's inputs for the selected keys, while `x` is 10 * k."""
    return [10 * k for k in keys if k % 2 == 0]


def clean(table: Table) -> None:
    """Deletes all versions of a table but the latest and the tagged versions."""
    table.to_lance().cleanup_old_versions(
        older_than=dt.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )


def compact(table: Table) -> None:
    table.to_lance().optimize.compact_files()


def upsert(table: Table, rows: Rows) -> None:
    """Puts rows in by `k`."""
    schema = pa.schema([table.to_lance().schema.field(name) for name in rows[0]])
    merge = (
        table.to_lance().merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
    )
    merge.execute(pa.Table.from_pylist(rows, schema=schema))


@contextmanager
def nothing_changes(view: Table) -> Iterator[None]:
    """Asserts that a view's rows and versions stay unchanged."""
    version, rows = view.version, rows_shown(view)
    yield
    assert (view.version, rows_shown(view)) == (version, rows)
