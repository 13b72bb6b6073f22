"""Tables as pandas and as Python rows: each value is exact, or an error names column and row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lance_spark import Connection, ValueConversionError

FAR: dict[str, pa.Array[Any]] = {
    "date": pa.array([1, None, 5_000_000], pa.date32()),
    "timestamp": pa.array([1, None, 10**18], pa.timestamp("us")),
    "timestamp with zone": pa.array([1, None, 10**18], pa.timestamp("us", "UTC")),
    "duration": pa.array([1, None, 2**62], pa.duration("s")),
}
"""Values whose last element has no object in Python."""

PLAIN_IN_PANDAS = {"timestamp", "timestamp with zone", "duration"}


def nested(values: pa.Array[Any]) -> dict[str, pa.Array[Any]]:
    offsets = pa.array(range(len(values) + 1), pa.int32())
    struct = pa.StructArray.from_arrays([values], ["x"])
    return {
        "plain": values,
        "struct": struct,
        "list": pa.ListArray.from_arrays(offsets, values),
        "list of structs": pa.ListArray.from_arrays(offsets, struct),
        "map": pa.MapArray.from_arrays(offsets, pa.array(["k"] * len(values)), values),
    }


@pytest.mark.parametrize("kind", FAR)
def test_a_value_beyond_python_is_itself_or_an_error_with_column_and_row(
    db: Connection, kind: str
) -> None:
    columns = nested(FAR[kind])
    data = pa.table({"id": [1, 2, 3], **columns})
    table = db.create_table("t", data, data_storage_version="2.2")
    for name in columns:
        near = table.to_pandas([name], "id < 3")[name]
        assert near.iloc[0] is not None and len(near) == 2
        reads = {"to_list": lambda name=name: table.search(None).select([name]).to_list()}
        if kind == "duration" and name not in ("plain", "list"):
            assert str(2**62) in str(table.to_pandas([name])[name].iloc[2])
        elif kind in PLAIN_IN_PANDAS and name in ("plain", "list"):
            number = table.to_pandas([name])[name].iloc[2]
            unit = "s" if kind == "duration" else "us"
            exact = number[0] if name == "list" else number.to_numpy()
            assert (
                exact.astype(f"{exact.dtype.kind}8[{unit}]").astype("int64")
                == FAR[kind].cast(pa.int64())[2].as_py()
            )
        else:
            reads["to_pandas"] = lambda name=name: table.to_pandas(["id", name])
            reads["search"] = lambda name=name: table.search(None).select(["id", name]).to_pandas()
        for read in reads.values():
            with pytest.raises(
                ValueConversionError, match=r"row 2 of the result.*to_arrow\(\)"
            ) as caught:
                read()
            assert (caught.value.column, caught.value.row) == (name, 2)
