"""Jobs whose calls run out of memory, and jobs whose equal inputs share calls."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import UnsupportedOperationError
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse import equal_inputs
from lance_spark.backfill.task.source_reader import SourceInputs
from lance_spark.dataset import DatasetRef
from udf_runtime import UDF, Skip, udf

pytestmark = pytest.mark.sample(1, tests=2)


def test_equal_inputs_share_calls_and_calls_keep_the_size_that_fits(
    db: lance_spark.Connection, tmp_path: Path
):
    log = str(tmp_path / "calls")
    rows = [{"id": i, "text": f"word {i % 7}" if i % 10 else None} for i in range(80)]
    rows += [{"id": 84, "text": "word 0"}] * 20  # the second batch needs no call
    lance.write_dataset(pa.Table.from_pylist(rows), f"{db.uri}/t.lance", enable_stable_row_ids=True)
    table = db.open_table("t")  # a single fragment

    def length(text: pa.Array) -> pa.Array:
        texts = text.to_pylist()
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{len(texts)} {texts}\n".encode())
        os.close(file)
        if len(texts) > 3 or "word 3" in texts:
            raise MemoryError("no room")
        return pa.array([-1 if each is None else len(each) + 10 * int(each[-1]) for each in texts])

    function = udf(
        length,
        data_type=pa.int64(),
        checkpoint_size=80,
        deduplicate=True,
        on_error=Skip(MemoryError),
        version="1",
    )
    table.add_columns({"length": function})
    result = table.backfill("length", task_size=100)
    calls = [line.split(" ", 1) for line in Path(log).read_text().splitlines()]
    assert [int(size) for size, _ in calls] == [8, 4, 2, 2, 1, 1, 4, 2, 2]
    skipped = [number for number, row in enumerate(rows) if row["text"] == "word 3"]
    assert (result.status, result.rows_computed, result.rows_skipped) == (
        "DONE",
        100 - len(skipped),
        len(skipped),
    )
    job = table.get_job(result.job_id)
    for counts in (result, job):
        assert (counts.rows_deduplicated, counts.batch_rows) == (92, 2)
    assert sorted(error.row_address for error in table.get_errors(result.job_id)) == skipped
    values = [-1 if row["text"] is None else 6 + 10 * (row["id"] % 7) for row in rows]
    assert table.to_arrow(["length"]).column(0).to_pylist() == [
        None if row["text"] == "word 3" else value for row, value in zip(rows, values, strict=True)
    ]


def counting(log: Path, version: str = "1", **settings) -> UDF:
    """A UDF of a text and a number that logs its calls."""

    def describe(text: str | None, number: float | None) -> str | None:
        with log.open("a") as file:
            file.write(f"{text} {number}\n")
        return None if text == "none" else f"{text} {number} {version}"

    return udf(describe, version=version, deduplicate="table", **settings)


def rows_of(*pairs: tuple[str | None, float | None]) -> pa.Table:
    texts, numbers = ([pair[i] for pair in pairs] for i in range(2))
    return pa.table(
        {"text": pa.array(texts, pa.string()), "number": pa.array(numbers, pa.float64())}
    )


def calls_in(log: Path) -> list[str]:
    """Returns the calls since the last look, sorted."""
    calls = sorted(log.read_text().splitlines()) if log.exists() else []
    log.write_text("")
    return calls


@pytest.mark.parametrize("filter_keys", [1000, 2])
def test_values_of_computed_rows_with_equal_inputs_need_no_call(
    filter_keys: int, db: lance_spark.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(equal_inputs, "_MOST_KEYS", filter_keys)
    log = tmp_path / "calls"
    first = rows_of(("it's", 0.0), ("b", None), ("none", 1.0), (None, 1.0), ("user", 1.0))
    lance.write_dataset(first, f"{db.uri}/t.lance", enable_stable_row_ids=True)
    table = db.open_table("t")
    table.add_columns({"v": counting(log)})
    with pytest.raises(UnsupportedOperationError, match="no scalar index of an input column"):
        table.backfill("v")
    table.create_scalar_index("text")
    assert table.backfill("v").rows_deduplicated == 0 and len(calls_in(log)) == 5
    table.update(values={"v": "by a user"}, where="text = 'user'")
    table.add(
        rows_of(
            ("it's", -0.0),
            ("b", None),
            ("b", None),
            ("none", 1.0),
            (None, 1.0),
            ("c", 1.0),
            ("user", 1.0),
        )
    )
    result = table.backfill("v")
    assert calls_in(log) == ["None 1.0", "c 1.0", "it's -0.0", "user 1.0"]
    assert (result.rows_computed, result.rows_deduplicated) == (7, 3)
    assert table.to_arrow(["v"]).column(0).to_pylist() == [
        *("it's 0.0 1", "b None 1", None, "None 1.0 1", "by a user"),
        *("it's -0.0 1", "b None 1", "b None 1", None, "None 1.0 1", "c 1.0 1", "user 1.0 1"),
    ]
    table.add(rows_of(("c", 1.0), ("d", 1.0)))
    assert table.backfill("v").rows_deduplicated == 0, "no index covers the row of c"
    assert calls_in(log) == ["c 1.0", "d 1.0"]
    table.update(values={"text": "moved"}, where="text = 'b'")
    table.optimize_indices()
    table.add(rows_of(("b", None), ("moved", None), ("c", 1.0)))
    assert table.backfill("v").rows_deduplicated == 1, (
        "values of rows with other inputs now are not taken"
    )
    assert calls_in(log) == ["b None", "moved None"]
    assert table.backfill("v", where="text = 'c'").rows_computed == 3
    assert set(calls_in(log)) == {"c 1.0"}, "with a filter, the UDF runs for every selected row"
    table.alter_columns({"path": "v", "udf": counting(log, "2")})
    table.backfill("v")
    assert {
        str(value)[-1] for value in table.to_arrow(["v"]).column(0).drop_null().to_pylist()
    } == {"2"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [-(2**63), 2**63 - 1, 0]),
        (pa.uint64(), [0, 2**63, 2**64 - 1]),
        (pa.int8(), [-128, 127]),
        (
            pa.string(),
            ["it's", "a\\'b", "new\nline", "nul\x00x", "", "'; --", "x" * (1 << 20), "😀"],
        ),
    ],
)
def test_every_key_is_found_by_its_filter(kind: pa.DataType, values: list[object], tmp_path: Path):
    keys = pa.array([*values, None], kind)
    dataset = lance.write_dataset(pa.table({"key": keys}), tmp_path / "t.lance")
    dataset.create_scalar_index("key", "BTREE")
    dataset = lance.dataset(tmp_path / "t.lance")

    filters = [f"key IN ({', '.join(literals)})" for literals in equal_inputs._split(keys)]
    parts = [dataset.scanner(filter=text, fast_search=True).to_table() for text in filters]

    assert all(
        "ScalarIndexQuery" in dataset.scanner(filter=text).explain_plan() for text in filters
    )
    assert {value for part in parts for value in part["key"].to_pylist()} == set(values)


def test_blobs_and_views_take_no_values_of_other_rows(db: lance_spark.Connection):
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table(
        [pa.array([1, 2]), pa.array([b"a", b"b"], pa.large_binary())],
        pa.schema([("id", pa.int64()), blob]),
    )
    lance.write_dataset(data, f"{db.uri}/t.lance", enable_stable_row_ids=True)
    table = db.open_table("t")

    def size(id: int, b: bytes) -> int:
        return id + len(b)

    def double(id: int) -> int:
        return 2 * id

    table.add_columns({"size": udf(size, deduplicate="table"), "double": udf(double)})
    table.create_scalar_index("id")
    with pytest.raises(
        UnsupportedOperationError, match=r"column 'b' of .* has blobs. Use deduplicate=True"
    ):
        table.backfill("size")
    spec = prepare(
        DatasetRef.at(table.uri), BackfillRequest(columns=("double",)), checkpoints=None
    ).spec
    view = dataclasses.replace(
        spec, input_source=SourceInputs(source=spec.snapshot, columns=("id",))
    )
    with pytest.raises(UnsupportedOperationError, match="inputs are columns of a view's source"):
        equal_inputs.check_equal_inputs(view, udf(double), spec.snapshot.open())
    equal_inputs.check_equal_inputs(spec, udf(double), spec.snapshot.open())
