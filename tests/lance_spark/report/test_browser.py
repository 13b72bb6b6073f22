"""The page in a real browser: narrow and wide windows, and no script of a hostile text."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lance_spark.report.places import SCRIPT, ended_jobs, hostile_place, write_jobs

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium, for example from the Debian package `chromium`"),
]

WIDTHS = (400, 1600)
SCROLL_BAR = 20

FRAME = """<!DOCTYPE html><meta charset="utf-8"><body>
<iframe srcdoc="%s" style="width: %dpx; height: 900px; border: 0"></iframe>
<script>
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(part => part.open = true);
  const wide = [...page.querySelectorAll("body *")].filter(part => part.getBoundingClientRect().right > root.clientWidth + 1);
  const seen = {
    width: root.clientWidth, needed: root.scrollWidth, height: root.scrollHeight, ran: window.ran ?? 0,
    wide: wide.slice(0, 3).map(part => part.outerHTML.slice(0, 200)), jobs: page.querySelectorAll(".job").length,
    requests: performance.getEntriesByType("resource").length,
  };
  setTimeout(() => { seen.ran = window.ran ?? 0; document.body.textContent = JSON.stringify(seen); }, 200);
});
</script>
"""


def look(page: str, width: int, folder: Path) -> dict[str, Any]:
    """Opens all parts of a page in a frame of a width, and returns what the browser measures."""
    file = folder / "frame.html"
    file.write_text(FRAME % (html.escape(page), width), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    options = ["--window-size=1700,1000", "--virtual-time-budget=5000", "--dump-dom", file.as_uri()]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=True)
    seen: dict[str, Any] = json.loads(html.unescape(ran.stdout.partition("<body>")[2].partition("</body>")[0]))
    return seen


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
    page = db.report().html.replace("</main>", f"{SCRIPT}<img src=x onerror='parent.ran = 1'></main>")
    assert look(page, 400, tmp_path)["ran"] == 0
    without_policy = page.replace("Content-Security-Policy", "none")
    assert look(without_policy, 400, tmp_path)["ran"] == 1, "the test notices scripts"
