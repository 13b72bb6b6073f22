"""Pages in Chromium, which a test measures in a frame of a width."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    "",
)

NEEDS_CHROMIUM = pytest.mark.skipif(
    not CHROMIUM, reason="needs Chromium, for example from the Debian package `chromium`"
)

WIDTHS = (400, 1600)
SCROLL_BAR = 20

FRAME = """<!DOCTYPE html><meta charset="utf-8"><body>
<iframe srcdoc="%s" style="width: %dpx; height: 900px; border: 0"></iframe>
<script>
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(part => part.open = true);
  const parts = [...page.querySelectorAll("%s")];
  const wide = parts.filter(part => part.getBoundingClientRect().right > root.clientWidth + 1);
  const seen = {
    width: root.clientWidth, needed: root.scrollWidth, height: root.scrollHeight, ran: window.ran ?? 0,
    wide: wide.slice(0, 3).map(part => part.outerHTML.slice(0, 200)), jobs: page.querySelectorAll("%s").length,
    requests: performance.getEntriesByType("resource").length,
  };
  setTimeout(() => { seen.ran = window.ran ?? 0; document.body.textContent = JSON.stringify(seen); }, 200);
});
</script>
"""


def look(
    page: str, width: int, folder: Path, *, measured: str = "body *", job: str = ".job"
) -> dict[str, Any]:
    """Opens all parts of a page in a frame of a width, and returns what the browser measures.

    `measured` selects the elements that must not be wider than the frame, and `job` selects the counted elements.
    """
    file = folder / "frame.html"
    file.write_text(FRAME % (html.escape(page), width, measured, job), encoding="utf-8")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}/profile",
    ]
    options = ["--window-size=1700,1000", "--virtual-time-budget=5000", "--dump-dom", file.as_uri()]
    ran = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=120, check=True
    )
    seen: dict[str, Any] = json.loads(
        html.unescape(ran.stdout.partition("<body>")[2].partition("</body>")[0])
    )
    return seen
