"""Jobs whose calls run out of memory, and jobs whose equal inputs share calls."""

from __future__ import annotations

import os
from pathlib import Path

import lance
import pyarrow as pa

import lance_spark
from udf_runtime import Skip, udf


def test_equal_inputs_share_calls_and_calls_keep_the_size_that_fits(db: lance_spark.Connection, tmp_path: Path):
    log = str(tmp_path / "calls")
    rows = [{"id": i, "text": f"word {i % 7}" if i % 10 else None} for i in range(100)]
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
        length, data_type=pa.int64(), checkpoint_size=100, deduplicate=True, on_error=Skip(MemoryError), version="1"
    )
    table.add_columns({"length": function})
    result = table.backfill("length", task_size=100)
    calls = [line.split(" ", 1) for line in Path(log).read_text().splitlines()]
    assert [int(size) for size, _ in calls] == [8, 4, 2, 2, 1, 1, 4, 2, 2]
    skipped = [row["id"] for row in rows if row["text"] == "word 3"]
    assert (result.status, result.rows_computed, result.rows_skipped) == ("DONE", 100 - len(skipped), len(skipped))
    assert (result.rows_deduplicated, result.batch_rows) == (92, 2)
    assert sorted(error.row_address for error in table.get_errors(result.job_id)) == skipped
    values = [-1 if row["text"] is None else 6 + 10 * (row["id"] % 7) for row in rows]
    assert table.to_arrow(["length"]).column(0).to_pylist() == [
        None if row["id"] in skipped else value for row, value in zip(rows, values, strict=True)
    ]
