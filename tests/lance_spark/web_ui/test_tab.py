"""The tab "Lance" of Spark's web UI, over HTTP."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import skip_on_error, udf
from lance_spark.backfill.driver import scheduler
from lance_spark.jobs.web_ui import JobInWebUi
from tests.lance_spark.report.places import HOSTILE
from tests.support.browser import NEEDS_CHROMIUM, WIDTHS, look
from tests.support.records import job_record
from tests.support.web_ui import fetch, wait_for_events, web_ui

pytestmark = pytest.mark.classic

RETAINED = 50
"""Setting `spark.ui.retainedJobs` of the tests' session."""


@udf(on_error=skip_on_error())
def checked(id: int) -> int:
    if id % 2:
        raise ValueError(f"a secret value {id}")
    return id


def show_jobs(count: int, **changes: Any) -> None:
    for number in range(count):
        JobInWebUi("/tables/t.lance").show(job_record(f"job-{number:05}", **changes))


def jobs_of(page: str) -> list[str]:
    """Returns the ids of the ended jobs of a page, in their order."""
    return list(dict.fromkeys(re.findall(r"job-\d{5}", page)))


def test_the_tab_shows_jobs_with_rows_by_address_and_no_values(spark: SparkSession, tmp_path: Path):
    column = "<script>alert(1)</script>"
    db = lance_spark.connect(str(tmp_path), spark, progress=False)
    table = db.create_table("t", [{"id": number} for number in range(4)])
    table.add_columns({column: checked})
    with web_ui(spark) as url:
        show_jobs(3 * RETAINED)
        JobInWebUi("/tables/t.lance").show(
            job_record("live", status="RUNNING", rows_selected=10, rows_computed=4)
        )
        silent = datetime.now(UTC) - timedelta(seconds=91)
        JobInWebUi("/tables/t.lance").show(
            job_record("lost", status="RUNNING", updated_at=silent, columns=("lost",))
        )
        result = table.backfill(column, where="id < 3 OR id = 987654321987")
        wait_for_events(spark)
        page = fetch(f"{url}/lance/")
    assert f"1 @{result.read_version}" in page and "ValueError" in page
    assert "2 computed, 1 skipped" in page and f"errors {table.uri} --job {result.job_id}" in page
    assert "secret" not in page and "987654321987" not in page
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page
    assert '<progress max="10" value="4"' in page
    assert re.search(r"DEAD(?:(?!<details).)*lost", page, re.DOTALL)
    assert (
        page.index("RUNNING") < page.index(result.job_id) < page.index("job-00149")
        and "job-00000" not in page
    )
    assert RETAINED - RETAINED // 10 <= int(re.search(r"(\d+) jobs\.", page)[1]) <= RETAINED  # type: ignore[index]


def make_deadly_runner(**_: object) -> Any:
    """Returns the function of a task whose process dies."""

    def die(batches: Iterator[Any]) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    return die


@pytest.mark.long
def test_the_tab_shows_a_task_whose_process_died(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    db = lance_spark.connect(str(tmp_path), spark, progress=False)
    table = db.create_table("t", [{"id": 2}])
    table.add_columns({"v": checked})
    monkeypatch.setattr(scheduler, "TaskRunner", make_deadly_runner)
    with web_ui(spark) as url:
        with pytest.raises(
            lance_spark.BackfillIncompleteError, match="died in 4 attempts"
        ) as raised:
            table.backfill("v")
        wait_for_events(spark)
        page = fetch(f"{url}/lance/")
    ended = page[page.index(raised.value.result.job_id) :]
    assert "rows of fragment 0" in ended[: ended.index("</details>")]


@pytest.mark.long
def test_pages_divide_ten_thousand_jobs(spark: SparkSession):
    context: Any = spark._jsc.sc()
    context.conf().set("spark.ui.retainedJobs", "10000")
    try:
        with web_ui(spark) as url:
            show_jobs(10_020)
            wait_for_events(spark)
            first, second = fetch(f"{url}/lance/"), fetch(f"{url}/lance/?page=2")
            odd = fetch(f"{url}/lance/?page=%3Cscript%3E"), fetch(f"{url}/lance/?page=99999999999")
            last = fetch(f"{url}/lance/?page=9999999")
    finally:
        context.conf().set("spark.ui.retainedJobs", str(RETAINED))
        with web_ui(spark):
            show_jobs(RETAINED)
            wait_for_events(spark)
    newest = [f"job-{number:05}" for number in range(10_019, 9_819, -1)]
    # The first page may begin with running jobs of another test.
    on_first = jobs_of(first)
    assert len(on_first) >= 98 and on_first + jobs_of(second) == newest[: len(on_first) + 100]
    assert [jobs_of(page) for page in odd] == [on_first] * 2
    assert jobs_of(last) == []
    assert "Older jobs" in first and "Newer jobs" in second and "Newer jobs" not in first


@pytest.mark.long
@NEEDS_CHROMIUM
@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_texts_fit_the_window_and_run_no_script(
    width: int, spark: SparkSession, tmp_path: Path
):
    with web_ui(spark) as url:
        show_jobs(RETAINED)
        for number, text in enumerate(HOSTILE):
            job = JobInWebUi(f"/tables/{text}")
            more = {"rows_selected": 100, "rows_skipped": 3, "rows_carried": 1, "retries": 2}
            job.show(
                job_record(
                    text,
                    job_type=text,
                    udf_name=text,
                    columns=(text,) * 30,
                    versions=(number,),
                    **more,
                )
            )
        wait_for_events(spark)
        page = fetch(f"{url}/lance/")
        own = page[page.index("<style>") : page.rindex("</details>")]
        assert not any(text in own for text in ("<script", "<img", "\x1b", "\u202e"))
        page = page.replace("<head>", f'<head><base href="{url}/lance/">', 1)
        seen = look(page, width, tmp_path, measured=".lance-job *", job=".lance-job")
    assert seen["jobs"] >= len(HOSTILE)
    assert (seen["ran"], seen["wide"]) == (0, [])
