"""Replies of tasks as JSON: the commit decides equally from the JSON and from the task's own objects."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

from lance_spark.commit.conflicts.identity import fragment_identity
from lance_spark.rows.row_addresses import DUPLICATE
from lance_spark.write.append_writer import LanceAppendWriter, RowsWritten
from lance_spark.write.column_writer import ColumnsWritten
from lance_spark.write.planned import decode_answers, decode_writer, encode_write
from tests.lance_spark.write.appends import batches, plan
from tests.lance_spark.write.backfills import Backfill, computed, make_table, snapshot_rows


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table with stable row ids, deleted rows and moved rows."""
    path = str(tmp_path / "table.lance")
    make_table(path, c=pa.int64())
    dataset = lance.dataset(path)
    dataset.delete("id IN (3, 15)")
    moved_rows = pa.table({"id": [5, 25], "text": ["x", "y"]})
    dataset.merge_insert("id").when_matched_update_all().execute(moved_rows)
    return path


@pytest.mark.parametrize("exclusive", [True, False], ids=["files", "runs"])
def test_the_answer_of_a_backfill_names_what_the_task_had(exclusive: bool, path: str) -> None:
    spec = {"exclusive": exclusive, "input_columns": ["text"], "snapshots": []}
    job = Backfill(path, "c", LongType(), spec=spec)
    rows = computed(snapshot_rows(path))
    answer = job.writer.write(
        iter([job.batch([*(a for a, _ in rows), rows[-1][0]], [*(v for _, v in rows), 0])])
    )
    again = job.writer.read_answer(json.loads(json.dumps(answer.to_json())))
    assert (again.runs, again.rejected) == (answer.runs, answer.rejected)
    assert again.rejected.counts == {DUPLICATE: 1}
    assert [(part.staged, set(part.given)) for part in again.fragments] == [
        (part.staged, set(part.given)) for part in answer.fragments
    ]
    assert len(again.fragments or again.seen) > 3
    ids = list(range(10))
    for old, new in (
        *zip(
            [p.fragment for p in answer.fragments],
            [p.fragment for p in again.fragments],
            strict=True,
        ),
        *zip(answer.seen, again.seen, strict=True),
    ):
        assert fragment_identity(new, ids, ids) == fragment_identity(old, ids, ids)


def test_a_write_crosses_the_jvm_as_texts(tmp_path: Path) -> None:
    job = plan(tmp_path / "table.lance")
    texts = encode_write(job)
    writer = decode_writer(texts["writer"])
    assert isinstance(writer, LanceAppendWriter) and writer == job
    assert all(isinstance(text, str) for text in texts.values())
    assert decode_answers(writer, [None]) == [None]
    answer = job.write(batches(1, 2))
    assert job.read_answer(json.loads(json.dumps(answer.to_json()))) == answer


def test_every_field_of_an_answer_is_sent() -> None:
    assert set(RowsWritten.__dataclass_fields__) == {"fragments"}
    assert set(ColumnsWritten.__dataclass_fields__) == set(ColumnsWritten().to_json())
