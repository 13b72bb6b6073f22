"""The history of jobs and the errors of rows: as values, and as tables for Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import BackfillIncompleteError, JobNotFoundError, Table
from tests.lance_spark.table.call_log import CallLog
from udf_runtime import UDF, Retry, Skip, udf


def picky(*, message: str = "bad row") -> UDF:
    @udf(
        data_type=pa.int64(),
        on_error=[Retry(OSError, max_attempts=2, backoff="fixed"), Skip(ValueError)],
    )
    def picky(id: int) -> int:
        if id % 10 == 4:
            raise ValueError(f"{message} {id}")
        if id % 10 == 9:
            return int(f"x{id}")
        return id * 2

    return picky


def failing() -> UDF:
    @udf(data_type=pa.int64())
    def failing(id: int) -> int:
        if id == 13:
            raise KeyError("thirteen")
        return id * 2

    return failing


def test_jobs_are_listed_newest_first_with_their_numbers(table: Table, call_log: CallLog):
    table.add_columns({"double": call_log.times(2), "triple": call_log.times(3)})
    assert table.list_jobs() == []
    first = table.backfill("double", where="id < 25")
    second = table.backfill("triple", job_id="mine")
    jobs = table.list_jobs()
    assert [job.job_id for job in jobs] == ["mine", first.job_id]
    job = jobs[1]
    assert job == table.get_job(first.job_id)
    assert (job.status, job.job_type, job.columns, job.udf_name, job.input_columns) == (
        "DONE",
        "backfill",
        ("double",),
        "times",
        ("id",),
    )
    assert (job.where, job.read_version, job.versions) == (
        "id < 25",
        first.read_version,
        first.versions,
    )
    assert (job.rows_selected, job.rows_computed, job.fragments_done, job.fragments_total) == (
        25,
        25,
        3,
        3,
    )
    assert job.completed_at is not None and job.launched_at < job.completed_at <= datetime.now(UTC)
    assert datetime.now(UTC) - job.launched_at < timedelta(minutes=10)
    assert job.message is None and "@" in job.launched_by
    assert jobs[0].udf_version == second.columns["triple"].udf_version != job.udf_version
    assert dict(job.seconds) == pytest.approx(dict(first.seconds), abs=0.1)
    assert min(job.seconds[stage] for stage in ("read", "compute", "write", "commit", "total")) > 0


def test_a_job_can_stay_out_of_the_history(table: Table, call_log: CallLog):
    table.add_columns({"double": call_log.times(2)})
    result = table.backfill("double", _enable_job_tracker_saves=False, job_id="hidden")
    assert result.rows_computed == 30 and table.list_jobs() == []
    with pytest.raises(JobNotFoundError):
        table.get_job("hidden")


@pytest.mark.guarantee("T74", "T76")
def test_skipped_rows_have_records_that_can_be_filtered(table: Table, spark: SparkSession):
    table.add_columns({"double": picky()})
    result = table.backfill("double", job_id="first")
    assert (result.status, result.rows_skipped, result.rows_computed) == ("DONE", 6, 24)
    errors = table.get_errors()
    assert len(errors) == 6 and all(error.job_id == "first" for error in errors)
    bad = [error for error in errors if "bad row" in error.error_message]
    assert {error.error_message for error in bad} == {"bad row 4", "bad row 14", "bad row 24"}
    for error in bad:
        assert (
            error.error_type in ("ValueError", "builtins.ValueError") and error.outcome == "skipped"
        )
        assert error.error_trace is not None and "picky" in error.error_trace
        assert (error.column_name, error.udf_name, error.input_columns) == (
            "double",
            "picky",
            ("id",),
        )
        assert (error.table_uri, error.table_version) == (table.uri, result.read_version)
        assert error.row_address is not None and error.row_address >> 32 == error.fragment_id
        assert error.attempt == 1 and error.timestamp <= datetime.now(UTC)
    assert (
        table.get_errors("first", "double", "ValueError")
        == errors
        == table.get_errors(error_type="builtins.ValueError")
    )
    for nothing in (
        {"job_id": "x"},
        {"column_name": "text"},
        {"error_type": "KeyError"},
        {"error_type": "Error"},
    ):
        assert table.get_errors(**nothing) == [], nothing


@pytest.mark.guarantee("T77", "T78")
def test_addresses_of_failed_rows_are_those_rows_and_the_documented_recipe_computes_just_them(
    table: Table, call_log: CallLog
):
    table.add_columns({"double": picky()})
    table.backfill("double", job_id="first")
    addresses = table.get_failed_row_addresses("first", "double")
    found_table = (
        table.to_lance().scanner(columns=["id"], with_row_address=True).to_table().to_pylist()
    )
    assert sorted(row["id"] for row in found_table if row["_rowaddr"] in addresses) == [
        4,
        9,
        14,
        19,
        24,
        29,
    ]
    assert (
        addresses == sorted(set(addresses))
        and table.get_failed_row_addresses("first", "text") == []
    )
    where = f"_rowaddr IN ({', '.join(map(str, addresses))})"
    result = table.backfill("double", where=where, udf=call_log.times(2))
    assert call_log.take() == [4, 9, 14, 19, 24, 29] and result.rows_computed == 6
    assert table.count_rows("double = id * 2") == 30


@pytest.mark.guarantee("T78")
def test_the_recipe_hits_the_same_rows_after_a_compaction(table: Table, call_log: CallLog):
    table.to_lance().delete("id IN (0, 11)")
    table.add_columns({"double": picky()})
    table.backfill("double", job_id="first")
    table.to_lance().optimize.compact_files()
    addresses = table.get_failed_row_addresses("first", "double")
    table.backfill(
        "double", where=f"_rowaddr IN ({', '.join(map(str, addresses))})", udf=call_log.times(2)
    )
    assert call_log.take() == [4, 9, 14, 19, 24, 29] and table.count_rows("double = id * 2") == 28


def test_skipped_rows_are_called_again_by_the_next_backfill(table: Table):
    table.add_columns({"double": picky()})
    table.backfill("double")
    again = table.backfill("double", job_id="second")
    assert (again.rows_selected, again.rows_computed, again.rows_skipped) == (6, 0, 6)
    assert len(table.get_errors("second")) == 6 and len(table.get_errors()) == 12


def test_an_error_without_a_policy_fails_its_fragment_and_the_others_are_committed(table: Table):
    table.add_columns({"double": failing()})
    with pytest.raises(BackfillIncompleteError, match="thirteen") as error:
        table.backfill("double", job_id="bad")
    result = error.value.result
    assert result.status == "PARTIAL" and set(result.fragments_failed) == {1}
    assert (result.fragments_done, result.fragments_left, result.fragments_total) == (2, 1, 3)
    assert table.count_rows("double = id * 2") == 20 and table.count_rows("double IS NULL") == 10
    job = table.get_job("bad")
    assert job.status == "PARTIAL" and "thirteen" in str(job.message) and job.fragments_done == 2
    (record,) = table.get_errors("bad")
    assert (
        record.outcome == "failed"
        and record.error_type.endswith("KeyError")
        and record.fragment_id == 1
    )
    assert table.get_failed_row_addresses("bad", "double") == [(1 << 32) + 3]


def test_spark_reads_history_and_errors_as_tables(table: Table, spark: SparkSession):
    table.add_columns({"double": picky()})
    result = table.backfill("double", job_id="first")
    jobs = spark.read.format("lance").load(f"{table.uri}/_lance_spark/jobs.lance")
    rows = jobs.filter("job_id = 'first' AND status = 'DONE'").collect()
    assert len(rows) == 1 and (rows[0].rows_computed, rows[0].rows_skipped) == (24, 6)
    assert rows[0].versions == list(result.versions) and rows[0]["columns"] == ["double"]
    errors = spark.read.format("lance").load(f"{table.uri}/_lance_spark/errors.lance")
    assert errors.filter("error_message LIKE 'bad row%'").count() == 3
    assert {row.error_type.rpartition(".")[2] for row in errors.collect()} == {"ValueError"}
    assert errors.select("row_address").distinct().count() == 6


def test_texts_with_quotes_and_marks_survive_the_history(table: Table):
    message = 'it\'s "bad" \n\t\u00e9\u65e5 %s {x}'
    table.add_columns({"double": picky(message=message)})
    table.backfill(
        "double", job_id='it\'s; DROP TABLE "x" --', where="text != 'o''clock' AND id = 14"
    )
    assert table.get_job('it\'s; DROP TABLE "x" --').where == "text != 'o''clock' AND id = 14"
    (error,) = table.get_errors('it\'s; DROP TABLE "x" --')
    assert error.error_message == f"{message} 14"


def test_a_second_job_of_the_same_id_takes_the_place_of_the_first(table: Table, call_log: CallLog):
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double", num_frags=1, job_id="again")
    table.backfill("double", job_id="again")
    (job,) = table.list_jobs()
    assert job.rows_computed == 20 and job.fragments_total == 2


def test_a_dropped_table_takes_its_history_along(
    table: Table, call_log: CallLog, db, spark: SparkSession
):
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double")
    db.drop_table("words")
    again = db.create_table("words", pa.table({"id": pa.array([1], pa.int64())}))
    assert again.list_jobs() == [] and again.get_errors() == []
