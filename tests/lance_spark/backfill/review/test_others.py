"""What others do beside a job, at a moment of a test's choice: in a call of the UDF, or when the job looks at the head."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillJobResult, Table
from lance_spark.commit import columns as column_commits
from lance_spark.commit.attempt import Landed, Unknown
from tests.lance_spark.backfill.review.lab import Lab
from udf_runtime import UDF, udf

ROWS = 40
SETTINGS: dict[str, Any] = {
    "min_checkpoint_size": 5,
    "checkpoint_size": 5,
    "batch_checkpoint_flush_interval_seconds": 0,
    "task_size": 10,
}

ACTS: dict[int, list[Callable[[], object]]] = {}
"""What is done when the UDF is called for a value, once."""

CALLS: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    ACTS.clear()
    CALLS.clear()


def times_ten() -> UDF:
    def f(x: int) -> int:
        from tests.lance_spark.backfill.review.test_others import ACTS, CALLS

        CALLS.append(x)
        for act in ACTS.pop(x, []):
            act()
        return x * 10

    return udf(f, data_type=pa.int64(), version="1", name="times_ten")


def make(lab: Lab, *, stable: bool = True) -> Table:
    """A table of four fragments of ten rows, with a column `v` of the UDF."""
    data = pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    table = lab.table()
    table.add_columns({"v": times_ten()})
    return table


def run(table: Table, **settings: Any) -> BackfillJobResult:
    result = table.backfill("v", **{**SETTINGS, **settings})
    assert result.status == "DONE"
    return result


def wrong(uri: str) -> list[dict[str, Any]]:
    """Rows whose value is not that of their input."""
    rows = lance.dataset(uri).to_table(columns=["id", "x", "v"]).to_pylist()
    return [row for row in rows if row["v"] != row["x"] * 10]


def rewrite(uri: str, column: str, values: dict[int, int]) -> None:
    source = pa.table({"id": pa.array(values, pa.int64()), column: pa.array(values.values(), pa.int64())})
    lance.dataset(uri).merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(source)


def clean_up(uri: str, **options: Any) -> None:
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), **options)


def test_files_of_a_commit_whose_answer_was_lost_stay(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real, lost = column_commits.attempt_commit, list[Any]()

    def attempt(*args: Any, **kwargs: Any) -> Any:
        outcome = real(*args, **kwargs)
        if lost or not isinstance(outcome, Landed):
            return outcome
        lost.append(outcome)
        return Unknown(error=OSError("timed out"))

    monkeypatch.setattr(column_commits, "attempt_commit", attempt)
    result = run(make(lab))
    assert lost and result.versions == (lance.dataset(lab.uri).version,)
    assert (result.rows_computed, result.fragments_done, wrong(lab.uri)) == (40, 4, [])
