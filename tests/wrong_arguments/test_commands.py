"""Every command of the command line with wrong values for each of its arguments and options.

A command works, or exits with 1 or 2 and one message without a traceback, and starts no Spark.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
import typer.main

import lance_spark
from lance_spark import SparkStartError, cli
from tests.wrong_arguments.values import TEXTS, sample

QUICK_VALUES = 1
VALUES = [
    text for text in TEXTS if "\0" not in text and "\ud800" not in text
]  # no process can get these as arguments
COMMANDS: dict[str, Any] = typer.main.get_group(cli.app).commands  # type: ignore[attr-defined]
VALID = {"uri": "{uri}", "column": "twice", "job_id": "nightly", "to": "1", "folder": "{folder}"}

REQUIRED = {
    "agent": {"root": ["--root", "{folder}"], "once": ["--once"]},
    "report": {"path": ["--html", "{folder}/report.html"]},
}
"""Options that a command cannot run or end without, by parameter."""


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("commands")
    lance.write_dataset(pa.table({"id": range(4)}), f"{folder}/t.lance", enable_stable_row_ids=True)
    table = lance_spark.connect(str(folder)).open_table("t")
    table.add_columns({"twice": "id * 2"})
    return table.uri


def parameters_of(name: str) -> list[str]:
    return [parameter.name for parameter in COMMANDS[name].params if parameter.name != "help"]


CASES = [(name, parameter) for name in COMMANDS for parameter in parameters_of(name)]


def arguments_of(name: str, wrong: str, value: str, uri: str) -> list[str]:
    """Returns a command with its required arguments, and a wrong value for one of its parameters."""
    options, positional = [], []
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            positional.append(value if parameter.name == wrong else VALID[parameter.name])
        elif parameter.name == wrong:
            options += [parameter.opts[0], *([] if parameter.is_flag else [value])]
    for parameter, texts in REQUIRED.get(name, {}).items():
        options += texts if parameter != wrong else []
    texts = [name, *options, "--", *positional]
    return [
        text.replace("{uri}", uri).replace("{folder}", uri.rpartition("/")[0]) for text in texts
    ]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., str]:
    def no_spark(*_: object, **__: object) -> Any:
        raise SparkStartError("No Spark is made here.")

    for module in ("agent", "parameters"):
        monkeypatch.setattr(f"lance_spark.cli.{module}.make_session", no_spark)
    monkeypatch.setattr("lance_spark.table.connections.connection.session_or_local", no_spark)
    monkeypatch.setattr("lance_spark.cli.upkeep.serve", no_spark)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")

    def call(arguments: list[str], *, fails: str | None = None) -> str:
        """Runs a command, and returns its fault.

        Args:
            arguments: The command.
            fails: Text of the required error message; None if the command may work.
        """
        capsys.readouterr()
        command_text = " ".join(arguments)[:80].encode("ascii", "backslashreplace").decode()
        try:
            cli.main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException as error:  # noqa: BLE001 - what a command must not do
            return f"{command_text}: {type(error).__name__}: {str(error)[:100]!r}"
        message = capsys.readouterr().err
        if (
            code not in (0, 1, 2)
            or "Traceback" in message
            or (code == 1 and message.count("\n") > 1)
        ):
            return f"{command_text}: exits with {code}: {message[:100]!r}"
        if fails is not None and (code == 0 or fails not in message):
            return f"{command_text}: exits with {code}: {message[:300]!r} without {fails!r}"
        return (
            "" if code == 0 or message else f"{command_text}: exits with {code} without a message"
        )

    return call


def faults_of(
    name: str, parameter: str, uri: str, run: Callable[..., str], count: int | None
) -> list[str]:
    version = lance.dataset(uri).version
    values = VALUES if count is None else sample(VALUES, count, name, parameter)
    faults = [run(arguments_of(name, parameter, value, uri)) for value in values]
    if name != "restore" and lance.dataset(uri).version != version:
        faults.append("the table was changed")
    return [fault for fault in faults if fault]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_a_command_with_a_wrong_value_works_or_says_what_is_wrong(
    name: str, parameter: str, uri: str, run: Callable[..., str]
):
    if faults := faults_of(name, parameter, uri, run, QUICK_VALUES):
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.long
@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_every_command_with_a_wrong_value_works_or_says_what_is_wrong(
    name: str, parameter: str, uri: str, run: Callable[..., str]
):
    if faults := faults_of(name, parameter, uri, run, None):
        pytest.fail("\n".join(faults), pytrace=False)


MISSING_NAMES = {
    "uri": [
        "{folder}/nope.lance",
        "{folder}",
        "{folder}/file.lance",
        "{folder}/empty",
        "/nowhere/nope.lance",
    ],
    "folder": ["{folder}/nope", "{folder}/file.lance"],
    "column": ["nope"],
    "job_id": ["nope"],
    "to": ["99", "nope", "work:99"],
    "read_version": ["99"],
    "create": ["nope"],
    "drop": ["nope"],
}
"""Names of missing objects, by parameter."""
NEW = [("backfill", "job_id")]
"""Parameters that name a new object of the command."""

FOLDERS = ("{folder}", "{folder}/empty")
"""Values of `uri` that exist for `report`, which takes a folder, too."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_names_what_does_not_exist_fails_and_says_so(
    name: str, uri: str, run: Callable[..., str]
):
    folder = uri.rpartition("/")[0]
    Path(folder, "empty").mkdir(exist_ok=True)
    Path(folder, "file.lance").touch()
    faults = [
        run(arguments_of(name, parameter, value, uri), fails=value.replace("{folder}", folder))
        for parameter in parameters_of(name)
        for value in MISSING_NAMES.get(parameter, ())
        if (name, parameter) not in NEW and (name != "report" or value not in FOLDERS)
    ]
    assert not any(faults), "\n".join(faults)


def test_every_command_is_called():
    assert {
        "backfill",
        "check",
        "cleanup",
        "compact",
        "errors",
        "index",
        "job",
        "jobs",
        "tables",
        "versions",
    } <= {name for name, _ in CASES}
    assert inspect.isfunction(cli.main)
