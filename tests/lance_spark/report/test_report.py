"""Reports: what the page says of jobs, tables, columns, views and streams. No session of Spark is made."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lance_spark
from lance_spark import OptionError, TableNotFoundError, cli, skip_on_error, udf
from lance_spark.agent.lease import Lease
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.history import JobHistory
from lance_spark.report.collect import query_states
from lance_spark.report.elements import show
from lance_spark.views.state import CONFIG_KEY
from tests.lance_spark.report.places import (
    HOSTILE,
    connect,
    ended_jobs,
    hostile_place,
    no_spark,
    write_errors,
    write_jobs,
)
from tests.lance_spark.views.views import forge
from tests.support.inline_jobs import NoSpark, inline_tasks
from tests.support.records import job_record


def words_of(html: str) -> str:
    """Returns the text of a page, without styles."""
    return " ".join(re.sub(r"<[^>]*>", " ", html.partition("</style>")[2]).split())


@udf(on_error=skip_on_error())
def invert(id: int) -> float:
    return 1 / (id % 10)


def test_a_page_of_a_real_job_has_its_counts_and_its_errors_by_address(tmp_path: Path):
    with inline_tasks():
        db = lance_spark.connect(str(tmp_path / "db"), NoSpark(), progress=False)
        table = db.create_table("numbers", [{"id": i} for i in range(30)])
        table.add_columns({"inverse": invert})
        table.backfill("inverse", job_id="first")
        table.add([{"id": 31}, {"id": 32}])
        text = words_of(table.report().html)
    assert "DONE numbers inverse backfill 30 of 30 rows 3 skipped" in text
    assert "30 selected, 27 computed, 3 skipped" in text and "version" in text
    for address in (0, 10, 20):
        assert f"{address} @2 skipped" in text and "ZeroDivisionError" in text
    # Two new rows and three skipped rows have no value.
    assert "84.38 % 5 3 0" in text and "5 without a value, 3 failed" in text


def test_a_running_job_shows_progress_rate_time_left_and_the_cost_of_concurrent_commits(
    tmp_path: Path,
):
    table = connect(tmp_path).create_table("t", [{"id": 1}])
    began = datetime.now(UTC) - timedelta(seconds=100)
    job = job_record(
        "live", status="RUNNING", launched_at=began, updated_at=began, rows_selected=1000
    )
    history = JobHistory(DatasetRef.at(table.uri))
    history.save(job)
    counts = {
        "rows_computed": 200,
        "rows_skipped": 10,
        "rows_carried": 7,
        "rows_recomputed": 5,
        "retries": 2,
    }
    history.beat(job.staging_id, SimpleNamespace(**counts))
    report = table.report()
    text = words_of(report.html)
    assert (report.jobs, report.running) == (1, 1) and "1 running" in report.text
    assert "210 of 1,000 rows 10 skipped 2.0 rows/s, about 6.6 min left" in text
    assert (
        "retries 2 concurrent commits 7 values moved with their rows, 5 rows computed again" in text
    )


def test_a_page_of_a_folder_has_versions_views_and_writing_streams(tmp_path: Path):
    db = connect(tmp_path / "db")
    books = db.create_table("books", [{"id": i} for i in range(10)])
    books.add([{"id": 10}], commit_message="one more", txn_app_id="nightly", txn_version=41)
    db.create_materialized_view("big", books.search(None).select(["id"]).where("id > 5"))
    shutil.copytree(tmp_path / "db" / "big.lance", tmp_path / "db" / "damaged.lance")
    for manifest in (tmp_path / "db" / "damaged.lance" / "_versions").iterdir():
        manifest.write_bytes(b"no manifest")
    report = db.report()
    text = words_of(report.html)
    assert (report.tables, report.text) == (3, "3 tables")
    assert "append" in text and "one more" in text and "nightly 41 2 committed" in text
    assert f"source {books.uri} query id WHERE id &gt; 5 shows nothing yet" in text
    assert "damaged damaged" in text  # its name, and its badge


def test_a_view_shows_its_lag(tmp_path: Path):
    db = connect(tmp_path / "db")
    books = db.create_table("books", [{"id": i} for i in range(10)])
    view = db.create_materialized_view("big", books.search(None).select(["id"]).where("id > 5"))
    incarnation = DatasetRef.at(books.uri).pin(None).incarnation
    state = {"version": 1, "incarnation": incarnation, "at": view.version, "skipped": None}
    view.to_lance().update_config({CONFIG_KEY: json.dumps(state)})  # as a refresh does
    assert "shows version 1 lag up to date" in words_of(view.report().html)
    books.add([{"id": 11}])
    books.add([{"id": 12}])
    text = words_of(db.report().html)
    assert "view 2 versions behind" in text and "lag 2 versions behind" in text


@pytest.mark.parametrize("outside", ["..", "../other/secret.lance", "absolute"])
def test_a_report_requests_no_source_outside_of_the_folder_of_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: str
):
    secret = connect(tmp_path / "other").create_table("secret", [{"id": 1}])
    db = connect(tmp_path / "db")
    books = db.create_table("books", [{"id": 1}])
    view = db.create_materialized_view(
        "big", books.search(None).select({"id": "id", "inverse": invert})
    )
    forge(
        view, lambda values: values.update(source=secret.uri if outside == "absolute" else outside)
    )
    opened: list[str] = []
    for name in ("open_latest", "pin"):
        real = getattr(DatasetRef, name)
        monkeypatch.setattr(
            DatasetRef,
            name,
            lambda ref, *more, real=real: opened.append(ref.uri) or real(ref, *more),
        )
    text = words_of(db.report().html)
    assert text.count("a report opens no tables elsewhere") == 2, "of the view, and of its column"
    assert opened and all(uri.startswith(f"{db.uri}/") for uri in opened)


def test_a_report_of_a_namespace_opens_a_source_of_the_namespace_at_its_own_location(
    tmp_path: Path,
):
    properties = {"root": str(tmp_path / "root")}
    db = lance_spark.connect(
        namespace_client_impl="dir", namespace_client_properties=properties, spark=no_spark
    )
    view = db.create_materialized_view(
        "v", db.create_table("books", [{"id": 1}]).search(None).select(["id"])
    )
    secret = connect(tmp_path / "other").create_table("secret", [{"id": 1}])
    assert "elsewhere" not in words_of(view.report().html)
    forge(view, lambda values: values.update(source=secret.uri))
    assert "The source is in another namespace" in words_of(view.report().html)
    forge(view, lambda values: values.update(source="books.lance", source_id=["inside", "books"]))
    assert "The source is in another namespace" in words_of(db.open_table("v").report().html)


def test_a_page_has_the_positions_of_streams_that_read(tmp_path: Path):
    table = connect(tmp_path / "db").create_table("t", [{"id": 1}])
    for number in range(4):
        table.add([{"id": number}])
    moment = datetime.now(UTC)
    folder = Path(table.uri) / "_lance_spark" / "streams"
    folder.mkdir(parents=True)
    for name, version, at in (("a" * 32, 2, moment), ("b" * 32, 1, moment - timedelta(days=8))):
        (folder / f"{name}.json").write_text(
            json.dumps({"version": version, "time": at.isoformat()})
        )
    (folder / f"{'c' * 32}.json").write_text("{")
    text = words_of(table.report().html)
    assert f"{'a' * 16} 2 at most 3 versions {moment:%Y-%m-%d %H:%M:%S} UTC" in text
    assert "b" * 16 not in text and "c" * 16 not in text, "expired, or damaged"
    assert len(list(folder.iterdir())) == 3, "a report deletes nothing"


def test_a_page_names_the_agent_and_what_it_keeps_up_to_date(tmp_path: Path):
    db = connect(tmp_path / "db")
    table = db.create_table("t", [{"id": 1}])
    table.add_columns({"inverse": invert}, auto_backfill=True)
    db.create_materialized_view("v", table.search(None).select(["id"]), auto_refresh=True)
    write_jobs(table, [*ended_jobs(1), job_record(f"agent{'0' * 32}", rows_selected=5)])
    lease = Lease(DatasetRef.at(table.uri), "an agent")
    assert lease.take()
    text = words_of(db.report().html)
    assert f"agent process {os.getpid()} of {socket.gethostname()} runs jobs" in text
    assert (
        "inverse (auto_backfill)" in text
        and "auto_refresh an agent keeps the view up to date" in text
    )
    assert text.count("by an agent") == 1
    lease.release()
    assert "runs jobs" not in words_of(table.report().html)


def test_the_latest_jobs_and_their_first_errors_are_shown_and_the_rest_is_named(tmp_path: Path):
    table = connect(tmp_path).create_table("t", [{"id": 1}])
    write_jobs(
        table,
        [
            *ended_jobs(230),
            job_record("bad", rows_selected=9000, rows_failed=9000, status="FAILED"),
        ],
    )
    write_errors(table, "bad", [f"error {number}" for number in range(40)])
    text = words_of(table.report().html)
    assert len(re.findall(r"job-\d+ table", text)) == 199
    assert (
        "The page has the 200 latest of 231 jobs." in text
        and f"lance-spark jobs {table.uri} --limit 231" in text
    )
    assert "180 older jobs" in text
    assert len(re.findall(r"error \d+", text)) == 10
    assert f"More errors: lance-spark errors {table.uri} --job bad" in text


@pytest.mark.long
def test_ten_thousand_jobs_make_a_small_page_in_little_time(tmp_path: Path):
    table = connect(tmp_path).create_table("t", [{"id": 1}])
    write_jobs(table, ended_jobs(10_000))
    began = time.monotonic()
    html = table.report().html
    assert time.monotonic() - began < 20
    assert len(html) < 1 << 20 and "200 latest of 10,000 jobs" in html


class Page(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[tuple[str, str, str | None]] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {(tag, name, value) for name, value in attrs}


HEAD = {"html", "head", "meta", "title", "style", "body"}
BODY = {
    "header",
    "main",
    "nav",
    "section",
    "h1",
    "h2",
    "h3",
    "p",
    "a",
    "b",
    "bdi",
    "code",
    "span",
    "time",
    "div",
}
PARTS = {
    "details",
    "summary",
    "progress",
    "dl",
    "dt",
    "dd",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}
ATTRIBUTES = {
    "lang",
    "charset",
    "name",
    "content",
    "http-equiv",
    "href",
    "class",
    "id",
    "open",
    "max",
    "value",
    "data-head",
}


def test_hostile_texts_are_shown_as_texts(tmp_path: Path):
    html = hostile_place(tmp_path).report().html
    html.encode()  # no half of a code point
    page = Page(html)
    assert page.elements <= HEAD | BODY | PARTS
    assert {name for _, name, _ in page.attributes} <= ATTRIBUTES
    assert all(
        value is not None and value.startswith("#")
        for _, name, value in page.attributes
        if name == "href"
    )
    assert "default-src 'none'" in html
    assert not set(html) & set("\x00\x1b\x7f\u202e\u2066") and "\ufffdgnp.exe" in html
    shown = html.count("parent.ran = 1")
    assert shown > 10 and "long" * 400 not in html and "שלום" in html


def test_half_of_a_code_point_is_replaced():
    assert show("a\ud800<") == "<bdi>a\ufffd&lt;</bdi>"


def test_a_notebook_shows_the_page_in_a_frame_without_scripts(tmp_path: Path):
    report = connect(tmp_path).report()
    page = Page(report._repr_html_())
    assert page.elements == {"iframe"} and ("iframe", "sandbox", None) in page.attributes
    assert ("iframe", "srcdoc", report.html) in page.attributes
    assert repr(report) == "<Report: 0 tables>"


def test_the_command_writes_the_page_of_a_table_or_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    db = connect(tmp_path / "db")
    db.create_table("t", [{"id": 1}])
    file = tmp_path / "page.html"
    for place, text in (
        (f"{tmp_path}/db/t.lance", "1 table"),
        (f"{tmp_path}/db/t", "1 table"),
        (f"{tmp_path}/db", "1 table"),
    ):
        assert run("report", place, "--html", file) == 0
        assert capsys.readouterr().out.strip() == f"{file}: {text}"
        assert file.read_text().startswith("<!DOCTYPE html>")
    assert run("report", tmp_path / "nothing", "--html", file) == 1
    assert run("report", tmp_path / "db", "--html", tmp_path / "no" / "folder.html") == 2
    assert "cannot be written" in capsys.readouterr().err


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_a_report_of_a_dropped_table_raises(tmp_path: Path):
    db = connect(tmp_path)
    table = db.create_table("t", [{"id": 1}])
    db.drop_table("t")
    with pytest.raises(TableNotFoundError):
        table.report()
    with pytest.raises(OptionError, match="namespaces"):
        db.report(namespace=["a"])


def test_streaming_queries_of_the_session_are_shown_with_their_lag():
    source = {"endOffset": offset(3), "latestOffset": offset(5)}
    progress = {"batchId": 7, "processedRowsPerSecond": 12.5, "sources": [source]}
    queries = [
        SimpleNamespace(name="copy", id="1", lastProgress=progress),
        SimpleNamespace(name=None, id="2", lastProgress=None),
    ]
    session: Any = SimpleNamespace(streams=SimpleNamespace(active=queries))
    first, second = query_states(session)
    assert (first.name, first.batch, first.rows_per_second) == ("copy", 7, 12.5)
    assert [str(lag) for lag in first.lags] == ["version 3, 2 versions behind version 5"]
    assert (second.name, second.batch, second.lags) == ("2", None, ())
    assert query_states(None) == []


def offset(version: int) -> dict[str, Any]:
    return {"version": version, "fragment": -1, "snapshot": False, "incarnation": "x"}


def test_hostile_texts_cover_what_they_say():
    assert any("\x00" in text for text in HOSTILE) and any(len(text) > 1000 for text in HOSTILE)
