"""Drawn data for the differential test: a Lance table with deleted rows in several fragments, and the same rows as
Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from lance_spark.types import to_spark_schema
from tests.lance_spark.pushdown.predicates import TYPES
from tests.strategies import arrays

ROWS = 24
_NESTED = pa.struct(
    [
        pa.field("n", pa.int32()),
        pa.field("x y", pa.string()),
        pa.field("deep", pa.struct([pa.field("D", pa.int64()), pa.field("f", pa.float64())])),
        pa.field(
            "items", pa.list_(pa.struct([pa.field("k", pa.int32()), pa.field("v", pa.string())]))
        ),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A drawn table.

    Attributes:
        table: All rows, including deleted rows. `id` numbers them; the columns `c0`, ... have the drawn types; `s`
            is nested.
        names: The drawn types, in the order of the columns, by their names in `predicates.TYPES`.
        deleted: Ids of the deleted rows.
    """

    table: pa.Table
    names: tuple[str, ...]
    deleted: tuple[int, ...]

    @property
    def live(self) -> int:
        """Number of live rows."""
        return int(self.table.num_rows) - len(self.deleted)

    def write(self, folder: Path) -> None:
        """Writes `t.lance` and `t.parquet`."""
        folder.mkdir(parents=True)
        dataset = lance.write_dataset(
            self.table,
            str(folder / "t.lance"),
            max_rows_per_file=10,
            data_storage_version="2.2",
            enable_stable_row_ids=True,
        )
        if self.deleted:
            dataset.delete(f"id in ({', '.join(map(str, self.deleted))})")
        live_rows = self.table.filter(
            pa.array([i not in self.deleted for i in range(self.table.num_rows)])
        )
        pq.write_table(as_spark_reads(live_rows), folder / "t.parquet")


def as_spark_reads(table: pa.Table) -> pa.Table:
    """Returns the rows in Spark's types, converted by PyArrow instead of this package."""
    return pa.table(
        {name: _spark_like(table[name].combine_chunks()) for name in table.column_names}
    )


def _spark_like(array: Any) -> Any:
    kind = array.type
    if pa.types.is_uint64(kind):
        return array.cast(pa.decimal128(20, 0))
    if pa.types.is_unsigned_integer(kind):
        return array.cast({8: pa.int16(), 16: pa.int32(), 32: pa.int64()}[kind.bit_width])
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_dictionary(kind):
        return array.dictionary_decode()
    if pa.types.is_timestamp(kind):
        return array.cast(pa.timestamp("us", None if kind.tz is None else "UTC"))
    if pa.types.is_large_string(kind):
        return array.cast(pa.string())
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind):
        return array.cast(pa.binary())
    return array


@st.composite
def datasets(draw: st.DrawFn, names: Sequence[str]) -> Dataset:
    """Tables with columns of these types in a random order, plus `id` and the nested `s`."""
    order = tuple(draw(st.permutations(list(names))))
    columns: dict[str, Any] = {"id": pa.array(range(ROWS), pa.int64())}
    for i, name in enumerate(order):
        columns[f"c{i}"] = draw(arrays(pa.field(f"c{i}", TYPES[name]), ROWS))
    columns["s"] = draw(arrays(pa.field("s", _NESTED), ROWS))
    deleted = draw(st.lists(st.integers(0, ROWS - 1), max_size=8, unique=True))
    return Dataset(table=pa.table(columns), names=order, deleted=tuple(sorted(deleted)))


def spark_types_agree() -> bool:
    """Tells whether the conversion here agrees with the package's own mapping of types."""
    schema = pa.schema([pa.field(name, kind) for name, kind in TYPES.items()])
    converted = as_spark_reads(schema.empty_table()).schema
    return bool(to_spark_schema(schema).simpleString() == to_spark_schema(converted).simpleString())
