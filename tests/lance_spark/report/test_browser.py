"""The page in a real browser: narrow and wide windows, and no script of a hostile text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lance_spark.report.places import SCRIPT, ended_jobs, hostile_place, write_jobs
from tests.support.browser import NEEDS_CHROMIUM, SCROLL_BAR, WIDTHS, look

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_with_hostile_texts_fits_its_window_and_runs_no_script(width: int, tmp_path: Path):
    db = hostile_place(tmp_path / "db")
    write_jobs(db.open_table("t"), ended_jobs(10_000))
    seen = look(db.report().html, width, tmp_path)
    assert width - SCROLL_BAR <= seen["width"] <= width
    assert (seen["needed"], seen["wide"]) == (seen["width"], [])
    assert (seen["ran"], seen["requests"], seen["jobs"]) == (0, 0, 200)


def test_the_policy_of_the_page_stops_a_script_that_is_in_it(tmp_path: Path):
    db = hostile_place(tmp_path / "db")
    page = db.report().html.replace(
        "</main>", f"{SCRIPT}<img src=x onerror='parent.ran = 1'></main>"
    )
    assert look(page, 400, tmp_path)["ran"] == 0
    without_policy = page.replace("Content-Security-Policy", "none")
    assert look(without_policy, 400, tmp_path)["ran"] == 1, "the test notices scripts"
