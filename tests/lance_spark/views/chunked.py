"""A chunker that logs its rows, a view of its chunks, and the expected rows of the view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import lance

from lance_spark import Connection, Table
from lance_spark.jobs.results import RefreshJobResult
from tests.lance_spark.views.views import WHERE, Rows, make_source
from tests.support.logs import Log
from udf_runtime import UDF, chunker

INDEX = "__child_index"


class Chunk(NamedTuple):
    n: int
    text: str


def chunks_of(x: int) -> list[dict[str, Any]]:
    """Returns the chunks of a row: none to three, by its `x`."""
    return [{"n": x + number, "text": f"{x}-{number}"} for number in range(x // 10 % 4)]


def chunking(
    log: Log, *, bad: int | None = None, flag: str = "", waits: int | None = None, **options: Any
) -> UDF:
    """A chunker over `x` that logs each x.

    While a file exists, the chunker raises ValueError after the first chunk of a row `bad`, and waits after the first
    chunk of a row `waits`.
    """
    path = log.path

    def chunk(x: int) -> Iterator[Chunk]:
        import os
        import time

        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        for number in range(x // 10 % 4):
            yield Chunk(x + number, f"{x}-{number}")
            if x == bad and os.path.exists(flag):
                raise ValueError(f"row {x} is bad")
        deadline = time.monotonic() + 120
        while x == waits and os.path.exists(flag) and time.monotonic() < deadline:
            time.sleep(0.01)

    return chunker(chunk, **options)


@dataclass(frozen=True)
class SourceAndChunks:
    """A view `c` of the chunks of a table `s`, each with `k` and twice `p` of its row."""

    source: Table
    view: Table
    log: Log

    def at(self, version: int | None = None, without: tuple[int, ...] = ()) -> Rows:
        """Returns the expected rows of the view for a version of its source, without rows with some `x`."""
        dataset = lance.dataset(self.source.uri, version=version)
        rows = dataset.to_table(with_row_id=True, filter=WHERE).to_pylist()
        return sorted(
            (
                {
                    "__source_row_id": row["_rowid"],
                    INDEX: number,
                    "k": row["k"],
                    "p2": 2 * row["p"],
                    **chunk,
                }
                for row in rows
                if row["x"] not in without
                for number, chunk in enumerate(chunks_of(row["x"]))
            ),
            key=by_row,
        )

    def inputs(self, version: int | None = None) -> dict[int, Any]:
        """Returns the chunker's input of each selected row, by row id, at a version of the source."""
        rows = (
            lance.dataset(self.source.uri, version=version)
            .to_table(with_row_id=True, filter=WHERE)
            .to_pylist()
        )
        return {row["_rowid"]: (row["k"], row["x"]) for row in rows}

    def check(self, version: int | None = None, without: tuple[int, ...] = ()) -> None:
        """Asserts that the view shows a version of its source."""
        columns = ["__source_row_id", INDEX, "k", "p2", "n", "text"]
        rows = self.view.to_lance().to_table(columns=columns).to_pylist()
        assert sorted(rows, key=by_row) == self.at(version, without)

    def refresh(
        self, calls: list[int] | None = None, without: tuple[int, ...] = (), **options: Any
    ) -> RefreshJobResult:
        """Refreshes, and asserts the rows of the view and the `x` of the chunker's calls."""
        result = self.view.refresh(**options)
        assert result.status == "DONE"
        self.check(result.source_version, without)
        called_rows = self.log.take()
        if calls is not None:
            assert called_rows == sorted(calls)
            assert result.rows_computed == len(calls) - result.rows_skipped
        return result

    def change(self, values: dict[str, str], where: str | None = None) -> None:
        self.source.to_lance().update(values, where=where)

    def delete(self, where: str) -> None:
        self.source.to_lance().delete(where)


def by_row(row: dict[str, Any]) -> Any:
    return row["__source_row_id"], row[INDEX]


def chunked(
    db: Connection,
    log: Log,
    keys: range | list[int] = range(20),
    *,
    chunker: UDF | None = None,
    refreshed: bool = True,
    **options: Any,
) -> SourceAndChunks:
    """Makes a source, and a view of its chunks."""
    source = make_source(db, keys, **options)
    query = source.search(None).select({"k": "k", "p2": "p * 2"}).where(WHERE)
    pair = SourceAndChunks(
        source=source, view=db.create_udtf_view("c", query, chunker or chunking(log)), log=log
    )
    if refreshed:
        pair.refresh()
    return pair
