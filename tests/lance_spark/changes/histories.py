"""Random histories of a table, and the changes of its versions according to plain pylance."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import lance
import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from lance_spark import Connection, Table
from tests.lance_spark.table.conftest import make_table

Change = tuple[int, str, tuple[Any, ...]]
"""Version, change type, and values."""

STEPS = [
    "append",
    "update",
    "delete",
    "compact",
    "restore",
    "in place",
    "unseen",
    "add",
    "null column",
    "drop",
    "rename",
    "swap",
    "widen",
    "index",
    "merge",
    "backfill",
    "branch",
    "overwrite",
]


@dataclass(slots=True)
class History:
    """A table with a random history.

    Attributes:
        table: The table, at a branch after a step `branch`.
        data: Draws numbers.
        begin: The first version whose changes are known.
    """

    table: Table
    data: st.DataObject
    begin: int = 1
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))

    @staticmethod
    def of(db: Connection, data: st.DataObject, steps: Iterable[str]) -> History:
        """Makes a table, and takes some steps."""
        history = History(make_table(db, fragments=2, rows=5), data)
        history.table.to_lance().add_columns({"other": "id * 2"})
        for step in steps:
            history.take(step)
        return history

    def take(self, step: str) -> None:
        """Takes a step, if the table has its columns."""
        dataset, number = self.table.to_lance(), next(self.numbers)
        some = self.data.draw(st.integers(0, 12))
        actions: dict[str, Callable[[], object]] = {
            "append": lambda: self.table.add(
                [{"id": number, "text": "new"}, {"id": number + 10_000, "text": "new"}]
            ),
            "update": lambda: dataset.update(
                {"text": f"'changed {number}'"}, where=f"id % 5 = {some % 5}"
            ),
            "delete": lambda: dataset.delete(f"id = {some}"),
            "compact": dataset.optimize.compact_files,
            "restore": lambda: self.table.restore(
                self.data.draw(st.integers(self.begin, self.table.version))
            ),
            "in place": lambda: self._rewrite(dataset, some, f"in place {number}"),
            "unseen": lambda: update_unseen(dataset, f"unseen {number}", some),
            "add": lambda: dataset.add_columns({f"c{number}": "id * 2"}),
            "null column": lambda: dataset.add_columns(pa.schema([("later", pa.string())])),
            "drop": lambda: dataset.drop_columns([dataset.schema.names[-1]]),
            "rename": lambda: dataset.alter_columns(
                {"path": dataset.schema.names[-1], "name": f"r{number}"}
            ),
            "swap": lambda: swap_names(dataset, *dataset.schema.names[-2:]),
            "widen": lambda: dataset.alter_columns(
                {"path": "id", "data_type": pa.int32() if some % 2 else pa.int64()}
            ),
            "index": lambda: dataset.create_scalar_index("text", "BTREE", replace=True),
            "merge": lambda: self._merge(dataset, some, number),
            "backfill": lambda: self._backfill(number),
            "branch": lambda: self._branch(number),
            "overwrite": lambda: self.table.add([{"id": 1, "text": "over"}], mode="overwrite"),
        }
        if step == "null column" and "later" in dataset.schema.names:
            return
        if step in ("drop", "rename") and len(dataset.schema.names) < 3:
            return
        if step == "swap" and (
            len(dataset.schema) < 4 or dataset.schema.types[-1] != dataset.schema.types[-2]
        ):
            return
        actions[step]()

    def _rewrite(self, dataset: lance.LanceDataset, some: int, text: str) -> None:
        if len(dataset.schema) > 2:  # Lance rewrites some columns in place, and not all
            new = pa.table(
                {"id": pa.array([some], dataset.schema.field("id").type), "text": [text]}
            )
            dataset.merge_insert("id").when_matched_update_all().write_mode(
                "rewrite_columns"
            ).execute(new)

    def _merge(self, dataset: lance.LanceDataset, some: int, number: int) -> None:
        ids = pa.array([some, number], dataset.schema.field("id").type)
        new = pa.table({"id": ids, "text": [f"merged {number}"] * 2})
        if len(dataset.schema) == 2:
            dataset.merge_insert(
                "id"
            ).when_matched_update_all().when_not_matched_insert_all().execute(new)

    def _backfill(self, number: int) -> None:
        reader = self.table._query_spark().read.format("lance").option("with_row_address", "true")
        frame = (
            reader.load(self.table.uri)
            .where("id % 3 = 0")
            .selectExpr("_rowaddr", f"id + {number} AS filled")
        )
        frame.write.format("lance").mode("append").option("mode", "backfill").save(self.table.uri)

    def _branch(self, number: int) -> None:
        self.table = self.table.branches.create(f"b{number}")
        self.begin = self.table.version

    def expected(
        self,
        first: int,
        last: int,
        columns: list[str],
        keep: Callable[[dict[str, Any]], bool],
        *,
        net: bool = False,
    ) -> Counter[Change]:
        """Returns the changes by a comparison by row id and value."""
        pairs = (
            [(first - 1, last)]
            if net
            else [(version - 1, version) for version in range(first, last + 1)]
        )
        return Counter(
            change
            for before, after in pairs
            for change in self._compare(before, after, columns, keep)
        )

    def _compare(
        self, before: int, after: int, columns: list[str], keep: Callable[[dict[str, Any]], bool]
    ) -> Iterable[Change]:
        old, new = (self.rows(version, columns, keep) for version in (before, after))
        for row in new.keys() - old.keys():
            yield after, "insert", new[row]
        for row in old.keys() - new.keys():
            yield after, "delete", old[row]
        for row in old.keys() & new.keys():
            if old[row] != new[row]:
                yield after, "update_preimage", old[row]
                yield after, "update_postimage", new[row]

    def rows(
        self, version: int, columns: list[str], keep: Callable[[dict[str, Any]], bool]
    ) -> dict[int, tuple[Any, ...]]:
        """Returns the kept rows of a version by row id. Version 0 and the start of a branch have no change."""
        if version == 0:
            return {}
        dataset = self.table.to_lance().checkout_version(max(version, self.begin))
        rows = dataset.scanner(with_row_id=True).to_table().to_pylist()
        return {row["_rowid"]: tuple(map(row.get, columns)) for row in rows if keep(row)}


def swap_names(dataset: lance.LanceDataset, first: str, second: str) -> None:
    """Gives two columns each other's name."""
    for old, new in ((first, "swapped"), (second, first), ("swapped", second)):
        dataset.alter_columns({"path": old, "name": new})


def update_unseen(dataset: lance.LanceDataset, text: str, id: int) -> None:
    """Changes one value in place, like `update_columns`: Lance updates no row version."""
    for fragment in dataset.get_fragments():
        rows = fragment.to_table(["id"], filter=f"id = {id}", with_row_id=True)
        if rows.num_rows:
            new = pa.table({"_rowid": rows["_rowid"], "text": [text]})
            changed, fields = fragment.update_columns(new, left_on="_rowid", right_on="_rowid")
            operation = lance.LanceOperation.Update(
                updated_fragments=[changed], fields_modified=fields
            )
            lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
            return


def changes_in(frame: DataFrame, columns: list[str]) -> Counter[Change]:
    """Returns the changes in a feed."""
    return Counter(
        (row["_commit_version"], row["_change_type"], tuple(row[name] for name in columns))
        for row in frame.collect()
    )
