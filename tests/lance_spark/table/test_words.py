"""Results, plans, jobs and records have a text form, and a table form in notebooks."""

from __future__ import annotations

import html

import pytest

from lance_spark import BackfillIncompleteError, Connection, Table
from lance_spark.display import join_counts
from tests.lance_spark.table.call_log import CallLog
from udf_runtime import skip_on_error, udf


@udf(on_error=skip_on_error())
def shout(id: int, text: str) -> str:
    if id % 10 == 3:
        raise ValueError("<not this one>")
    return text.upper()


def test_a_backfill_is_shown_in_words(table: Table):
    table.add_columns({"loud": shout})
    plan = table.plan_backfill("loud")
    assert repr(plan) == "<BackfillPlan: backfill of loud in words, version 4: 30 of 30 rows to do>"
    job = table.backfill_async("loud")
    result = job.result()
    assert str(result) == result.text == f"DONE: 27 computed, 3 skipped, version {table.version}"
    assert repr(result) == f"<BackfillJobResult: {result.text}>"
    assert (
        repr(table.list_jobs()[0]) == f"<JobRecord: backfill of loud {result} (job {job.job_id})>"
    )
    record = min(table.get_errors(), key=lambda error: error.row_address or 0)
    assert record.text == "ValueError: <not this one> (row address 3 of loud, version 4, skipped)"
    page = record._repr_html_()
    assert (
        "&lt;not this one&gt;" in page
        and "<not" not in page
        and "<th>udf_name</th><td>shout</td>" in page
    )
    for displayed in (plan, result, job, table.list_jobs()[0]):
        assert displayed._repr_html_().startswith("<table><caption>")


def test_failed_jobs_display_their_reason(table: Table, call_log: CallLog):
    @udf
    def fails(id: int) -> int:
        raise ValueError("never")

    table.add_columns({"x": fails})
    with pytest.raises(BackfillIncompleteError):
        table.backfill("x")
    assert table.list_jobs()[0].text.startswith("backfill of x FAILED: ")
    assert "never" in table.list_jobs()[0].text


def test_a_connection_lists_its_tables(db: Connection, table: Table):
    page = db._repr_html_()
    assert html.escape(db.uri) in page and "1 table" in page and "<li>words</li>" in page


def test_a_view_and_a_load_are_shown_in_words(db: Connection, table: Table):
    view = db.create_materialized_view("view", table.search().select(["id"]))
    assert "30 rows to add" in str(view.plan_refresh())
    assert (
        str(view.refresh())
        == f"DONE: 30 added, source version {table.version}, version {view.version - 1}"
    )
    plan = table.plan_load_columns([{"id": 1, "more": 2}], "id", ["more"])
    assert repr(plan).startswith(
        "<LoadPlan: load of more into words, version 3: 30 rows in 3 fragments"
    )


def test_parts_that_are_nothing_are_left_out():
    assert (
        join_counts((0, "skipped"), (1_000, "computed"), "", "version 3")
        == "1,000 computed, version 3"
    )
    assert issubclass(type(join_counts()), str) and not join_counts()
