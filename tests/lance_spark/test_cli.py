"""The command line: output for people and for programs, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Table, cli
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.history import JobHistory, this_process
from tests.support.records import job_record
from udf_runtime import UDF, skip_on_error, udf

pytestmark = pytest.mark.sample(1, tests=3)

ROOT = Path(__file__).parents[2]
ROWS = 40
FRAGMENT_ROWS = 10


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> object:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return call


def doubling(*bad: int, skips: bool = False) -> UDF:
    """A UDF with errors on some ids, pickled by value."""

    def double(id: int) -> int:
        if id in bad:
            raise ValueError(f"[bold]{id}[/bold]\nis a bad id")
        return id * 2

    return udf(double, on_error=skip_on_error() if skips else None)


def make(path: Path, function: UDF | None = None) -> Table:
    """A table of four fragments with a computed column, in a folder of its own."""
    db = lance_spark.connect(str(path / "db"), progress=False)
    rows = [{"id": i} for i in range(ROWS)]
    table = db.create_table("numbers", rows[:FRAGMENT_ROWS])
    for first in range(FRAGMENT_ROWS, ROWS, FRAGMENT_ROWS):
        table.add(rows[first : first + FRAGMENT_ROWS])
    table.add_columns({"double": function or doubling()})
    return table


@pytest.fixture
def filled(spark: SparkSession, tmp_path: Path) -> Table:
    """A table filled by a job except for two rows, skipped by its policy."""
    table = make(tmp_path, doubling(7, 23, skips=True))
    table.backfill("double", job_id="first")
    return table


@pytest.mark.sample(1)
def test_a_backfill_fills_the_column_and_exits_with_0(
    spark: SparkSession, tmp_path: Path, run: Run
):
    table = make(tmp_path)
    ran = run("backfill", table.uri, "double", "--job-id", "mine")
    assert (ran.code, ran.err) == (0, "")
    assert "mine" in ran.out and "DONE" in ran.out
    assert "40 selected: 40 computed, 0 from checkpoints, 0 skipped, 0 failed" in ran.out
    assert "4 of 4" in ran.out
    assert table.to_arrow(["double"])["double"].to_pylist() == [i * 2 for i in range(ROWS)]


def test_a_backfill_with_nothing_to_do_makes_no_version(filled: Table, run: Run):
    filled.backfill("double", where="double IS NULL", udf=doubling())
    before = filled.version
    ran = run("backfill", filled.uri, "double", "--json")
    assert ran.code == 0
    assert filled.version == before
    assert ran.document["versions"] == []  # type: ignore[index]


def test_the_parameters_of_a_backfill_are_passed_on(spark: SparkSession, tmp_path: Path, run: Run):
    table = make(tmp_path)
    window = (
        "--num-frags",
        2,
        "--skip-frags",
        1,
        "--where",
        "id % 2 = 0",
        "--read-version",
        table.version,
    )
    sizes = ("--task-size", 5, "--checkpoint-size", 2, "--flush-interval", 0, "--threads", 2)
    ran = run(
        "backfill",
        table.uri,
        "double",
        *window,
        *sizes,
        "--concurrency",
        "all",
        "--commit-granularity",
        1,
        "--json",
    )
    assert ran.code == 0
    result = ran.document
    assert isinstance(result, dict)
    assert (result["status"], result["where"], result["rows_computed"]) == (
        "DONE",
        "id % 2 = 0",
        10,
    )
    assert len(result["versions"]) >= 1
    filled = [
        i
        for i, value in enumerate(table.to_arrow(["double"])["double"].to_pylist())
        if value is not None
    ]
    assert filled == list(range(10, 30, 2))
    once = ("backfill", table.uri, "double", "--txn-app-id", "app", "--txn-version", 3, "--json")
    assert [run(*once).document["rows_computed"] for _ in range(2)] == [30, 0]  # type: ignore[index, call-overload]


def test_a_backfill_ends_at_its_budget_with_0(spark: SparkSession, tmp_path: Path, run: Run):
    table = make(tmp_path)
    ran = run("backfill", table.uri, "double", "--max-calls", 7, "--max-seconds", 1000)
    assert ran.code == 0
    assert "PARTIAL" in ran.out
    assert "The budget max_calls=7 is used up" in " ".join(ran.out.split())
    filled = run("backfill", table.uri, "double", "--max-cost", 1, "--json")
    assert isinstance(filled.document, dict)
    assert (filled.document["status"], filled.document["rows_from_checkpoint"]) == ("DONE", 7)


def test_a_backfill_that_stays_incomplete_says_so_in_one_line_and_exits_with_1(
    spark: SparkSession, tmp_path: Path, run: Run
):
    table = make(tmp_path, doubling(7))
    ran = run("backfill", table.uri, "double", "--json")
    assert ran.code == 1
    assert isinstance(ran.document, dict), "the result is printed nevertheless"
    assert (ran.document["status"], ran.document["fragments_done"]) == ("PARTIAL", 3)
    assert ran.err.startswith("lance-spark: The backfill is incomplete: 3 of 4 fragments done")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


def test_a_backfill_of_a_wrong_column_is_refused_before_spark_is_asked(
    spark: SparkSession, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    table = make(tmp_path)
    monkeypatch.setattr(
        "lance_spark.cli.parameters.make_session", lambda master: pytest.fail("Spark was started")
    )
    ran = run("backfill", table.uri, "nope", "--master", "local[2]")
    assert ran.code == 1
    assert ran.err.startswith("lance-spark: Column 'nope' does not exist")


def test_a_backfill_runs_on_the_master_that_is_named(
    spark: SparkSession, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    table = make(tmp_path)
    masters: list[str] = []
    monkeypatch.setattr(
        "lance_spark.cli.parameters.make_session", lambda master: masters.append(master) or spark
    )
    assert run("backfill", table.uri, "double", "--master", "spark://host:7077").code == 0
    assert masters == ["spark://host:7077"]


def test_stored_udfs_can_be_forbidden(
    spark: SparkSession, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    table = make(tmp_path)
    monkeypatch.setenv("LANCE_SPARK_ALLOW_STORED_UDFS", "0")
    ran = run("backfill", table.uri, "double")
    assert ran.code == 1
    assert "forbidden by LANCE_SPARK_ALLOW_STORED_UDFS" in ran.err
    assert "Traceback" not in ran.err


def test_checkpoints_of_a_connection_are_found(spark: SparkSession, tmp_path: Path, run: Run):
    elsewhere = tmp_path / "checkpoints"
    table = make(tmp_path, doubling(ROWS - 1))
    by_connection = lance_spark.connect(str(tmp_path / "db"), checkpoint=str(elsewhere)).open_table(
        "numbers"
    )
    with pytest.raises(lance_spark.BackfillIncompleteError):
        by_connection.backfill(
            "double", checkpoint_size=1, batch_checkpoint_flush_interval_seconds=0
        )
    last = run("plan", table.uri, "double", "--checkpoint", elsewhere, "--json").document
    assert isinstance(last, dict)
    assert (last["total_rows_pending"], last["rows_from_checkpoint"] > 0) == (FRAGMENT_ROWS, True)
    assert run("plan", table.uri, "double", "--json").document["rows_from_checkpoint"] == 0  # type: ignore[index]


def test_a_plan_reads_like_one_and_starts_no_spark(
    filled: Table, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "lance_spark.table.connections.connection.session_or_local",
        lambda spark: pytest.fail("Spark was asked for"),
    )
    ran = run("plan", filled.uri, "double")
    assert ran.code == 0
    assert ran.out.startswith("Backfill of double in numbers, version ")
    assert "2 of 40 rows in 2 of 4 fragments" in ran.out


def test_a_plan_for_programs_has_what_is_computed_too(filled: Table, run: Run):
    plan = run("plan", filled.uri, "double", "--json").document
    assert isinstance(plan, dict)
    assert (plan["has_work"], plan["rows_to_compute"], plan["total_rows_pending"]) == (True, 2, 2)
    window = run(
        "plan", filled.uri, "double", "--num-frags", 1, "--skip-frags", 1, "--json"
    ).document
    assert isinstance(window, dict)
    assert (window["total_rows_pending"], window["rows_outside"]) == (0, 2)
    chosen = run(
        "plan",
        filled.uri,
        "double",
        "--where",
        "id < 5",
        "--task-size",
        2,
        "--read-version",
        2,
        "--json",
    )
    assert chosen.code == 1, "at version 2 there was no such column"


def test_a_plan_for_a_cluster_has_time_requests_and_price(filled: Table, run: Run):
    ran = run("plan", filled.uri, "double", "--slots", 200, "--latency", "30ms")
    assert ran.code == 0
    assert "On 200 slots, 30 ms per request" in ran.out
    assert " reads, " in ran.out and "$0.00" in ran.out
    estimate = run(
        "plan", filled.uri, "double", "--slots", 200, "--latency", "0.05s", "--json"
    ).document["estimate"]  # type: ignore[index]
    assert (estimate["slots"], estimate["latency_s"]) == (200, 0.05)
    assert estimate["call_seconds"] is not None, "the speed of the first job"
    ran = run("plan", filled.uri, "double", "--slots", 200, "--concurrency", 16)
    assert "On 16 slots" in ran.out, "a job of 16 tasks at once"


def test_a_plan_without_counts_gives_bounds(filled: Table, run: Run):
    ran = run("plan", filled.uri, "double", "--bounds", "--json")
    assert isinstance(ran.document, dict)
    # The records of the first job cover two of the four fragments.
    assert (ran.document["exact"], ran.document["total_rows_pending"]) == (False, ROWS // 2)


def test_jobs_are_listed_newest_first(filled: Table, run: Run):
    filled.backfill("double", job_id="second")
    listed = run("jobs", filled.uri)
    assert listed.code == 0
    assert listed.out.index("second") < listed.out.index("first")
    assert "38 of 40" in listed.out
    jobs = run("jobs", filled.uri, "--json", "--limit", 1).document
    assert isinstance(jobs, list)
    assert [job["job_id"] for job in jobs] == ["second"]
    assert datetime.fromisoformat(jobs[0]["launched_at"]).tzinfo is not None


def test_a_table_without_jobs_and_errors_says_so(spark: SparkSession, tmp_path: Path, run: Run):
    table = make(tmp_path)
    assert run("jobs", table.uri).out == "no jobs\n"
    assert run("errors", table.uri).out == "no errors\n"
    assert run("jobs", table.uri, "--json").document == []


def test_one_job_is_shown_with_its_counts(filled: Table, run: Run):
    output = run("job", filled.uri, "first")
    assert output.code == 0
    assert "40 selected: 38 computed, 0 from checkpoints, 2 skipped, 0 failed" in output.out
    assert "double(id), version " in output.out
    job = run("job", filled.uri, "first", "--json").document
    assert isinstance(job, dict)
    assert (job["status"], job["rows_skipped"]) == ("DONE", 2)


def test_a_job_whose_driver_is_gone_is_shown_as_dead(filled: Table, run: Run):
    process = json.loads(this_process())
    dead_record = job_record(
        "gone", status="RUNNING", process=json.dumps({**process, "started": "0"})
    )
    JobHistory(DatasetRef.at(filled.uri)).save(dead_record)
    output = run("job", filled.uri, "gone")
    assert "DEAD" in output.out and "its driver is gone" in output.out


def test_a_job_that_is_not_known_is_an_error_of_one_line(filled: Table, run: Run):
    ran = run("job", filled.uri, "nope")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("lance-spark: Job 'nope' is not known") and ran.err.count("\n") == 1


def test_errors_are_shown_as_they_are_on_one_line_each(filled: Table, run: Run):
    ran = run("errors", filled.uri)
    assert ran.code == 0
    assert "[bold]7[/bold] is a bad id" in ran.out
    assert "skipped" in ran.out and "ValueError" in ran.out
    assert ran.out.count("is a bad id") == 2


def test_errors_can_be_chosen(filled: Table, run: Run):
    def count(*options: str) -> int:
        document = run("errors", filled.uri, "--json", *options).document
        assert isinstance(document, list)
        return len(document)

    assert (
        count("--type", "ValueError") == count("--column", "double") == count("--job", "first") == 2
    )
    assert count("--type", "KeyError") == count("--column", "id") == 0
    assert count("--limit", "1") == 1
    assert "1 older ones; --limit shows more" in run("errors", filled.uri, "--limit", "1").out


@pytest.mark.parametrize(("option", "name"), [("--job", "nope"), ("--column", "nope")])
def test_errors_of_a_job_or_column_that_does_not_exist_exit_with_1(
    filled: Table, run: Run, option: str, name: str
):
    ran = run("errors", filled.uri, option, name)
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "'nope'" in ran.err


def test_errors_for_programs_have_traces_and_addresses(filled: Table, run: Run):
    document = run("errors", filled.uri, "--json").document
    assert isinstance(document, list)
    assert {error["row_address"] for error in document} == {7, 2 << 32 | 3}
    assert all("raise ValueError" in error["error_trace"] for error in document)


def test_versions_say_what_made_them(filled: Table, run: Run):
    ran = run("versions", filled.uri)
    assert ran.code == 0
    assert "backfill of double by UDF double (job first)" in ran.out
    versions = run("versions", filled.uri, "--json").document
    assert isinstance(versions, list)
    assert [version["version"] for version in versions] == list(range(1, filled.version + 1))
    assert (versions[0]["operation"], versions[-1]["rows"]) == ("create", ROWS)
    assert len(run("versions", filled.uri, "--limit", 2, "--json").document) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs"],
        ["nonsense"],
        ["jobs", "{uri}", "--nonsense"],
        ["jobs", "{uri}", "--storage", "secret"],
        ["jobs", "{uri}", "--storage", "=secret"],
        ["jobs", "{uri}", "--limit", "0"],
        ["plan", "{uri}", "double", "--num-frags", "some"],
        ["plan", "{uri}", "double", "--task-size", "0"],
        ["plan", "{uri}", "double", "--slots", "0"],
        ["plan", "{uri}", "double", "--slots", "8", "--latency", "30"],
        ["plan", "{uri}", "double", "--where", "nope = 3"],
        ["plan", "{uri}", "double", "--concurrency", "9" * 5000],
        ["backfill", "{uri}", "double", "--concurrency", "0"],
        ["backfill", "{uri}", "double", "--threads", "0", "--master", "local[1]"],
        ["backfill", "{uri}", "double", "--flush-interval", "nan", "--master", "local[1]"],
        ["index", "{uri}", "--create", "id", "--type", "nonsense", "--master", "local[1]"],
        ["compact", "{uri}", "--target-rows", "-1", "--master", "local[1]"],
        ["cleanup", "{uri}", "--older-than-days", "1e300", "--master", "local[1]"],
        ["cleanup", "{uri}", "--older-than-days", "-1", "--master", "local[1]"],
        ["connect-server", "--port", "99999"],
        ["backfill", "{uri}", "double", "--commit-granularity", "never"],
    ],
    ids=lambda arguments: " ".join(arguments)[:80],
)
def test_a_wrong_call_exits_with_2_and_starts_no_spark(
    arguments: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "lance_spark.cli.parameters.make_session", lambda _: pytest.fail("Spark was started")
    )
    uri = make(tmp_path).uri
    ran = run(*[uri if argument == "{uri}" else argument for argument in arguments])
    assert ran.code == 2
    assert ran.err and not ran.out
    assert "Traceback" not in ran.err and "secret" not in ran.err


def test_a_table_that_is_not_there_is_an_error_of_one_line(tmp_path: Path, run: Run):
    for command in (
        ["jobs"],
        ["errors"],
        ["versions"],
        ["plan", "x"],
        ["backfill", "x"],
        ["job", "x"],
    ):
        ran = run(command[0], tmp_path / "none.lance", *command[1:])
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert "No Lance table was found" in ran.err


def test_storage_options_reach_the_table(filled: Table, run: Run, monkeypatch: pytest.MonkeyPatch):
    options_seen: list[object] = []
    real = cli.jobs.open_table

    def spying(uri: str, *arguments: object, **keywords: object) -> Table:
        options_seen.append(keywords["storage_options"])
        return real(uri)

    monkeypatch.setattr(cli.jobs, "open_table", spying)
    assert (
        run("jobs", filled.uri, "--storage", "region=eu-west-1", "--storage", "token=a=b").code == 0
    )
    assert options_seen == [{"region": "eu-west-1", "token": "a=b"}]


def test_the_script_is_installed_under_its_name():
    module, _, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "lance-spark"
    ].partition(":")
    assert getattr(import_module(module), name) is cli.main


def test_the_program_runs_as_a_process_of_its_own(tmp_path: Path):
    command = [sys.executable, "-m", "lance_spark.cli", "jobs", str(tmp_path / "none.lance")]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=dict(os.environ)
    )
    assert (process.returncode, process.stdout, process.stderr.count("\n")) == (1, "", 1)


def test_importing_the_package_imports_no_typer():
    script = "import sys, lance_spark; print(sorted({'typer', 'rich', 'lance'} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.strip() == "[]"
