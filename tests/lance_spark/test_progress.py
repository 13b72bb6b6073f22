"""Progress of running jobs: a line per stage, intact on a terminal with other output, replaced in place in a
notebook.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lance_spark.jobs.progress import Progress
from tests.support.terminal import rendered, written_to_terminal

TWO_JOBS = """
import logging, sys, time
logging.basicConfig(format="%(levelname)s %(message)s")
out = logging.StreamHandler(sys.stdout)
logging.getLogger("mine").addHandler(out)
from lance_spark.jobs.progress import Progress
first, second = Progress("t.a"), Progress("a_table_with_a_name_that_is_far_too_long_for_one_line_of_the_terminal.b")
first.start(4000, 4)
second.start(4000, 4)
for step in range(1, 5):
    for job in (first, second) if step < 4 else (first,):
        job.update(rows=1000 * step, written=step, committed=step - 1)
        print(f"print {step}")
        print(f"error {step}", file=sys.stderr)
        logging.warning("log %d", step)
        logging.getLogger("mine").error("own %d", step)
        time.sleep(0.25)
    if step == 3:
        second.close("CANCELLED")
first.close("DONE")
print("after")
logging.warning("after")
assert sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__ and out.stream is sys.__stdout__
"""

SPARK_TOO = """
import sys, time
import pyarrow as pa
from pyspark.sql import SparkSession
import lance_spark
from pyspark.sql.functions import udf

spark = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "true").getOrCreate()

@lance_spark.udf(data_type=pa.int64())
def slowly(id: int) -> int:
    import time
    time.sleep(0.3)
    return id

table = lance_spark.connect(sys.argv[1], spark).create_table("t", pa.table({"id": list(range(20))}))
table.add_columns({"x": slowly})
job = table.backfill_async("x")
while not job.done(0.5):
    print("I wait")
print(job.result())
"""


def stages(lines: list[str]) -> list[str]:
    """Returns the names of stages and their progress, from the lines with bars."""
    matches = [re.fullmatch(r"(.*\S) +[━╸╺]+ +(.* of .*) 0:00:\d\d", line) for line in lines]
    return [f"{match[1]} {match[2].rstrip()}" for match in matches if match]


def test_two_jobs_have_whole_lines_whatever_is_printed_and_logged(tmp_path: Path):
    lines = rendered(written_to_terminal(TWO_JOBS, folder=tmp_path))
    of_steps = [
        [f"print {n}", f"error {n}", f"WARNING log {n}", f"own {n}", f"ERROR own {n}"]
        for n in range(1, 5)
    ]
    messages = [line for line in lines if line and not stages([line])]
    assert messages == [
        *of_steps[0] * 2,
        *of_steps[1] * 2,
        *of_steps[2] * 2,
        *of_steps[3],
        "after",
        "WARNING after",
    ]
    stages_shown = stages(lines)
    assert all(line.startswith("a_table_with_a_name") for line in stages_shown[:3])
    assert [line.partition("… ")[2] for line in stages_shown[:3]] == [
        "3,000 of 4,000 rows computed CANCELLED",
        "3 of 4 fragments written",
        "2 of 4 fragments committed",
    ]
    assert stages_shown[3:] == [
        "t.a 4,000 of 4,000 rows computed DONE",
        "t.a 4 of 4 fragments written",
        "t.a 3 of 4 fragments committed",
    ]


@pytest.mark.long
def test_a_job_on_spark_has_its_lines_to_itself(tmp_path: Path):
    output = written_to_terminal(SPARK_TOO, str(tmp_path), folder=tmp_path)
    assert "[Stage" not in output
    lines = rendered(output)
    assert stages(lines) == [
        "t.x 20 of 20 rows computed DONE",
        "t.x 1 of 1 fragments written",
        "t.x 1 of 1 fragments committed",
    ]
    assert "I wait" in lines


def test_without_a_terminal_nothing_is_shown(capfd: pytest.CaptureFixture[str]):
    progress = Progress("t.a")
    progress.start(10, 1)
    progress.update(rows=10, written=1, committed=1)
    progress.close("DONE")
    assert capfd.readouterr() == ("", "")


def test_where_it_is_asked_for_the_end_is_shown_without_control_characters(
    capfd: pytest.CaptureFixture[str],
):
    progress = Progress("t.a", enabled=True)
    progress.start(10, 1)
    progress.update(rows=10, written=1, committed=1)
    progress.close("DONE")
    output = capfd.readouterr()
    assert (
        output.out == ""
        and len(output.err.splitlines()) == 3
        and "10 of 10 rows computed DONE" in output.err
    )
    assert not set(output.err) & {"\x1b", "\r"}


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The outputs of a notebook's cell, each with all its texts; the last text is the visible one."""
    outputs: list[list[str]] = []

    class ZMQInteractiveShell:
        """The shell of notebooks."""

    class Handle:
        def __init__(self, text: str) -> None:
            self.shown = [text]
            outputs.append(self.shown)

        def update(self, value: str) -> None:
            self.shown.append(value)

    shell, display = ModuleType("IPython"), ModuleType("IPython.display")
    shell.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda value, display_id: Handle(value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return outputs


def test_a_notebook_has_one_output_for_each_job(
    cell: list[list[str]], capfd: pytest.CaptureFixture[str]
):
    first, second = Progress("t.<a>"), Progress("t.b")
    first.start(1000, 2)
    second.start(0, 0, commits=False)
    time.sleep(0.3)
    seconds = {"load": 1.0, "read": 5.0, "compute": 12.0, "limit": 0.0, "write": 1.0, "commit": 6.0}
    for rows in range(0, 1001, 10):
        first.update(rows=rows, written=1, committed=0, seconds=seconds)
    assert "rows computed (compute 48 %, commit 24 %, read 20 %)</td>" in cell[0][1]
    first.close("DONE")
    second.close("FAILED")
    assert len(cell) == 2 and len(cell[0]) < 10, "not shown at each update"
    assert cell[0][-1].count("<tr>") == 3 and "t.&lt;a&gt;" in cell[0][-1]
    assert (
        '<progress max="1000" value="1000"></progress></td><td>1,000 of 1,000 rows computed DONE</td>'
        in cell[0][-1]
    )
    assert "0 of 0 rows computed FAILED" in cell[1][-1] and cell[1][-1].count("<tr>") == 2, (
        "without commits"
    )
    assert capfd.readouterr() == ("", "")


def test_the_terminal_of_the_tests_writes_over():
    assert rendered("ab\rc\r\n\x1b[31mdef\x1b[0m\x1b[1A\r\x1b[2Kx") == ["x", "def"]
