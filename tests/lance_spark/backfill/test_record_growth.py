"""Records of many jobs grow with the number of jobs, keep the jobs of their rows, and spare reads of values."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Connection, Table
from lance_spark.backfill.reuse.computed_rows import RECORDS, FragmentRecord, Records, RecordStore
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.records import JobRecord
from lance_spark.rows.row_set import RowSet
from tests.lance_spark.table.call_log import CallLog
from tests.support.records import record

pytestmark = pytest.mark.sample(1, tests=2)

ROWS = 100


@pytest.fixture
def call_log(tmp_path: Path) -> CallLog:
    return CallLog(str(tmp_path / "calls"))


@pytest.fixture
def table(db: Connection, call_log: CallLog) -> Table:
    """A table of one fragment with a filled column."""
    table = db.create_table("numbers", pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double")
    call_log.take()
    return table


def record_rows(table: Table) -> int:
    return lance.dataset(f"{table.uri}/{RECORDS.name}").count_rows()


def test_a_job_parses_no_entries_of_earlier_jobs(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()
    parse = JobRecord.from_row
    for job in range(6):
        parsed = list[object]()
        with monkeypatch.context() as patches:
            patches.setattr(
                JobRecord, "from_row", lambda row, parsed=parsed: parsed.append(row) or parse(row)
            )
            table.backfill("double", where="id < 2" if job % 2 else f"id = {job}")
        counts.append(len(parsed))
    assert len(table.list_jobs()) == 7
    # The last completed job of the same filter, as the start and the end.
    assert max(counts) <= 3, counts


@pytest.mark.long
def test_records_of_jobs_with_a_filter_grow_with_the_number_of_jobs(
    table: Table, call_log: CallLog
) -> None:
    counts = {}
    for job in range(1, 41):
        table.backfill("double", where=f"id = {job}", job_id=f"job-{job}")
        counts[job] = record_rows(table)
    assert call_log.take() == list(range(1, 41))
    # A job adds a record of its row, and a record of the other rows.
    assert {job: rows for job, rows in counts.items() if job in (1, 10, 40)} == {
        1: 3,
        10: 21,
        40: 81,
    }
    assert len(lance.dataset(f"{table.uri}/{RECORDS.name}").get_fragments()) <= 3
    # The rows still belong to their jobs: the first job needs no call, and another job does.
    table.backfill("double", where="id = 1", job_id="job-1")
    assert call_log.take() == []
    table.backfill("double", where="id = 1", job_id="job-41")
    assert call_log.take() == [1]


def test_a_job_that_runs_again_after_other_jobs_makes_no_call(
    table: Table, call_log: CallLog
) -> None:
    table.backfill("double", where="id < 10", job_id="a")
    table.backfill("double", where="id BETWEEN 5 AND 6", job_id="b")
    table.backfill("double", where="id = 50", job_id="c")
    call_log.take()
    assert table.backfill("double", where="id < 10", job_id="a").rows_computed == 0
    assert table.plan_backfill("double", where="id < 10").total_rows_pending == 10
    assert call_log.take() == []
    table.backfill("double", where="id < 10", job_id="d")
    assert call_log.take() == list(range(10))


@pytest.mark.long
def test_a_cleanup_drops_records_of_deleted_files_that_newer_records_replace(table: Table) -> None:
    for _ in range(3):
        table.backfill("double", where="true")
    assert record_rows(table) == 4
    table.cleanup_old_versions(timedelta(0))
    lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert record_rows(table) == 1
    assert not table.plan_backfill("double", stale=True).has_work


def job_rows(records: Records, jobs: frozenset[str]) -> dict[str, list[int]]:
    """Returns the rows of the newest record of fragment 1, by job."""
    newest = records.of(1)[0].table_version
    parts = [part for part in records.of(1) if part.table_version == newest]
    rows: dict[str, set[int]] = {}
    for part in parts:
        for split in records.by_job(part, jobs):
            rows[split.job_id] = rows.get(split.job_id, set()) | set(split.computed)
    return {job: sorted(some) for job, some in rows.items()}


def some_rows(version: int, job_id: str, rows: list[int]) -> FragmentRecord:
    computed = RowSet.of(rows)
    return record(
        1, version, job_id=job_id, computed=computed, nulls=RowSet.empty(), failed=RowSet.empty()
    )


def test_records_of_earlier_releases_and_new_records_name_the_same_jobs(tmp_path: Path) -> None:
    earlier, now = (RecordStore(DatasetRef.at(str(tmp_path / name))) for name in ("earlier", "now"))
    # Earlier releases repeated the rows of every job with each commit.
    for store in (earlier, now):
        store.append([some_rows(1, "a", [0, 1, 2, 3])])
    earlier.append([some_rows(2, "b", [2]), some_rows(2, "a", [0, 1, 3]), some_rows(2, "", [9])])
    earlier.append(
        [
            some_rows(3, "c", [3]),
            some_rows(3, "b", [2]),
            some_rows(3, "a", [0, 1]),
            some_rows(3, "", [9]),
        ]
    )
    now.append([some_rows(2, "b", [2]), some_rows(2, "", [0, 1, 3, 9])])
    now.append([some_rows(3, "c", [3]), some_rows(3, "", [0, 1, 2, 9])])
    jobs = frozenset({"a", "b"})
    expected = {"c": [3], "b": [2], "a": [0, 1], "": [9]}
    assert job_rows(earlier.load("token"), jobs) == expected
    assert job_rows(now.load("token"), jobs) == expected
    # A commit of this release after records of an earlier release.
    earlier.append([some_rows(4, "d", [0]), some_rows(4, "", [1, 2, 3, 9])])
    assert job_rows(earlier.load("token"), jobs) == {"d": [0], "b": [2], "a": [1], "": [3, 9]}


def read_values(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that gets the filter of each scan of values before a job."""
    from lance_spark.backfill.planning import planner

    scans: list[str] = []
    matching_addresses = planner.matching_addresses

    def noted(dataset: lance.LanceDataset, fragments: object, text: str) -> object:
        scans.append(text)
        return matching_addresses(dataset, fragments, text)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "matching_addresses", noted)
    return scans


def test_recorded_values_are_not_read_again(
    table: Table, call_log: CallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = read_values(monkeypatch)
    assert table.backfill("double").status == "DONE"
    assert not table.plan_backfill("double").has_work
    assert scans == []
    table.update("id = 7", values_sql={"double": "NULL"})
    assert table.plan_backfill("double").total_rows_pending == 1
    assert len(scans) == 1, "another writer wrote the file"
    call_log.take()
    table.backfill("double")
    assert table.to_arrow(["double"])["double"].null_count == 0
    table.backfill("double")
    assert len(scans) == 2


def judge_nothing(*_: object) -> object:
    return pytest.fail("values are compared with their inputs")


def test_values_of_other_writers_are_read_once(
    db: Connection, call_log: CallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = pa.array(range(ROWS), pa.int64())
    table = db.create_table("others", pa.table({"id": ids, "double": ids}))
    table.add(pa.table({"id": ids, "double": ids}))
    scans = read_values(monkeypatch)
    for _ in range(2):
        result = table.backfill("double", udf=call_log.times(2))
        assert (result.status, result.rows_stale) == ("DONE", 0)
        # The second backfill also takes from the record that the values are up to date.
        monkeypatch.setattr(
            "lance_spark.backfill.reuse.value_history.ValueHistory.judge", judge_nothing
        )
    assert len(scans) == 1 and call_log.take() == []
    monkeypatch.undo()
    scans = read_values(monkeypatch)
    table.update("id = 5", values_sql={"id": "id + 500"})
    result = table.backfill("double", udf=call_log.times(2))
    assert (result.rows_stale, call_log.take()) == (2, [])
    # A deletion changes the live rows of two fragments, and the new row has no value.
    table.delete("id = 3")
    table.add(pa.table({"id": pa.array([1000], pa.int64()), "double": pa.nulls(1, pa.int64())}))
    assert table.backfill("double", udf=call_log.times(2)).rows_computed == 1
    assert call_log.take() == [1000]
    scans.clear()
    table.backfill("double", udf=call_log.times(2))
    assert scans == []


def test_values_of_other_writers_in_many_fragments_start_one_job(
    db: Connection, call_log: CallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_spark.backfill.planning.fragment_plan.COUNTED_FRAGMENTS", 1)
    ids = pa.array(range(ROWS), pa.int64())
    table = db.create_table("many", pa.table({"id": ids, "double": ids}))
    table.add(pa.table({"id": ids, "double": ids}))
    for _ in range(2):
        assert table.backfill("double", udf=call_log.times(2)).status == "DONE"
        assert len(table.list_jobs()) == 1
    assert call_log.take() == []
