"""Every public function, method and constructor, called with wrong values for each of its parameters.

A session of Spark is never made: a call with accepted arguments ends with a typed error when it asks for Spark.
"""

from __future__ import annotations

import socket
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.wrong_arguments.subjects import SUBJECTS, CallFolder, Subject, make_template, uncovered
from tests.wrong_arguments.values import judge, sample, show, wrong_values

QUICK_CALLS = 3
"""Calls per function in the quick suite, each with one wrong value."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template") / "db")


@pytest.fixture
def place(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CallFolder:
    # Relative paths, including paths with `..`, stay below the test's folder.
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    monkeypatch.setattr(
        socket, "create_connection", lambda *_, **__: pytest.fail("a connection was made")
    )
    at = CallFolder(template, inside / "db")
    at.reset()
    return at


def fault_of(subject: Subject, at: CallFolder, name: str, value: object) -> str | None:
    """Makes a call with one wrong value, and returns the fault of the call."""
    before = at.versions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accepted_names = [*subject.signature.parameters, "name"]
        outcome = judge(
            name, value, lambda: subject.call(at, {name: value}), accepted_names=accepted_names
        )
    changed = not at.folder.exists() or at.versions() != before
    if (
        changed or subject.name == "Connection.capture_local_environment"
    ):  # its archives are no versions
        at.reset()
    if outcome.kind == "refuses" and changed:
        return f"{name}={show(value)}: a call that raised changed a table"
    return outcome.text or None


def faults_of(subject: Subject, at: CallFolder, count: int | None) -> list[str]:
    """Makes all calls with one wrong value, or a sample, and returns their faults."""
    names = [
        name
        for name, parameter in subject.signature.parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    calls = [(name, make) for name in names for make in wrong_values()]
    faults = []
    for name, make in calls if count is None else sample(calls, count, subject.name):
        value = make()
        if name == "skip_site_packages" and isinstance(value, (bool, np.bool_)):
            continue  # a capture of all packages takes minutes
        faults.append(fault_of(subject, at, name, value))
    return [text for text in faults if text is not None]


def test_a_call_with_a_wrong_argument_works_or_raises_an_error_of_ours(place: CallFolder):
    faults = [
        f"{name}: {text}"
        for name, subject in SUBJECTS.items()
        for text in faults_of(subject, place, QUICK_CALLS)
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_call_with_a_wrong_argument_works_or_raises_an_error_of_ours(
    name: str, place: CallFolder
):
    if faults := faults_of(SUBJECTS[name], place, None):
        pytest.fail("\n".join(faults), pytrace=False)


def test_the_call_without_a_wrong_argument_lacks_none(place: CallFolder):
    """Else the calls above would say nothing about their arguments."""
    for subject in SUBJECTS.values():
        outcome = judge("", None, lambda subject=subject: subject.call(place, {}))
        assert outcome.kind != "fault", (subject.name, outcome.text)


def test_every_export_is_called_or_a_result():
    assert uncovered() == []
