"""SQL procedures with wrong values, by the code behind the JVM's calls, without a JVM: `test_statements.py` has the
statements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from lance_spark import SparkStartError
from lance_spark.errors import OptionError
from lance_spark.jvm import gateway
from lance_spark.sql.catalog.location import ProcedureCall
from lance_spark.sql.procedures.calls import PROCEDURES, call
from tests.wrong_arguments.subjects import CallFolder, make_template
from tests.wrong_arguments.values import TEXTS, show

RIGHT: dict[str, object] = {
    "table": "t", "column": "twice", "source": "t", "source_column": "twice", "where": "id > 1", "older_than_days": 1.0,
    "target_rows_per_fragment": 100, "name": "extra", "from_ref": "work", "type": "BTREE", "version": "1", "columns": ["id"],
    "query": "SELECT id FROM t", "job": "j",
}  # fmt: skip
VALUES: dict[str, list[object]] = {
    "ARRAY<STRING>": [None, [], ["id"], ["nope"], ["id", "id"], ["id", "ID"], ["\0"], ["é"], [""]],
    "BOOLEAN": [None, True, False],
    "INT": [None, -1, 0, 1, 99, 2**31 - 1, -(2**31)],
    "BIGINT": [None, -1, 0, 1, 99, 2**31, 2**63 - 1, -(2**63)],
    "DOUBLE": [None, -1.0, 0.0, 0.5, 1e300, float("nan"), float("inf")],
}
"""Values of each type that SQL may pass."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CallFolder:
    def no_spark(*_: object, **__: object) -> Any:
        raise SparkStartError("No Spark is made here.")

    monkeypatch.setattr("lance_spark.table.connections.connection.session_or_local", no_spark)
    monkeypatch.setattr(ProcedureCall, "spark", property(no_spark))
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")  # the start of relative paths
    at = CallFolder(make_template(tmp_path / "template"), tmp_path / "db")
    at.reset()
    return at


def calls() -> Iterator[tuple[str, str, list[object]]]:
    """Yields procedure, wrong parameter, and values of all parameters."""
    for procedure, about in PROCEDURES.items():
        kinds = {"table": "TABLE", **{name.lstrip("*"): kind for name, kind in about.parameters}}
        for wrong, kind in kinds.items():
            for value in VALUES.get(kind, [None, *TEXTS]):
                arguments = {name: RIGHT.get(name) for name in kinds} | {wrong: value}
                yield procedure, wrong, list(arguments.values())


def arguments_of(folder: Path) -> dict[str, object]:
    """Returns the arguments of each command for a catalog."""
    origins = {
        "application": None,
        "registered": {"root": str(folder), "allow_stored_code": "true"},
        "session": {},
        "shown": [],
    }
    return {"catalog": "lance", "origins": origins}


def fault_of(procedure: str, wrong: str, values: list[object], folder: Path) -> str | None:
    """Calls a procedure like the JVM, and returns the fault of the answer."""
    # LanceProcedure.java divides the names of tables.
    kinds = [("table", "TABLE"), *PROCEDURES[procedure].parameters]
    names = {
        name.lstrip("*"): value.split(".") if "/" not in value else [value]
        for (name, kind), value in zip(kinds, values, strict=True)
        if kind == "TABLE" and isinstance(value, str) and value
    }
    arguments = {**arguments_of(folder), "procedure": procedure, "values": values, "names": names}
    answer = json.loads(
        gateway._Python().apply(json.dumps({"command": "call", "arguments": arguments}), None)
    )
    error = answer.get("error")
    if error is None or (
        error.startswith("lance_spark.")
        and (answer["kind"] != "OptionError" or f"'{wrong}'" in error)
        and "'a value of type" not in error
    ):
        return None
    return f"{procedure}({', '.join(map(show, values))}), {wrong}: {error[:300]}"


@pytest.mark.long
def test_a_procedure_with_a_wrong_value_works_or_raises_an_error_of_ours_that_names_the_argument(
    place: CallFolder,
):
    faults = []
    for procedure, wrong, values in calls():
        before = place.versions()
        faults.append(fault_of(procedure, wrong, values, place.folder))
        if place.versions() != before:
            place.reset()
    assert not any(faults), "\n".join(filter(None, faults))


def test_an_error_about_an_argument_of_another_name_shows_the_value_of_the_statement(
    place: CallFolder, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> Any:
        raise OptionError("columns", {"id": 1}, "another column", problem="is too long")

    monkeypatch.setitem(PROCEDURES, "create_index", replace(PROCEDURES["create_index"], run=fail))
    arguments = {
        "procedure": "create_index",
        "values": ["t", "id", None],
        "names": {"table": ["t"]},
    }
    with pytest.raises(
        OptionError, match=r"Option 'column' = 'id' is too long\. Accepted: another column"
    ):
        call({**arguments_of(place.folder), **arguments}, None)


def test_an_exception_of_spark_that_pyspark_has_no_class_for_goes_back_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
):
    """For example a scalar subquery with two rows, or RLIKE with a wrong pattern."""
    thrown = SimpleNamespace(_target_id="o1")

    def fail(*_: object) -> dict[str, Any]:
        raise Py4JJavaError("An error occurred", thrown)

    monkeypatch.setattr(gateway, "find_command", lambda _: fail)
    assert (
        gateway._Python().apply(json.dumps({"command": "load_table", "arguments": {}}), None)
        is thrown
    )


class Panic(BaseException):
    """Like a panic of Lance, which is no Exception."""


def test_a_panic_of_a_command_is_an_answer(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> dict[str, Any]:
        raise Panic("index out of bounds")

    monkeypatch.setattr(gateway, "find_command", lambda _: fail)
    answer = gateway._Python().apply(json.dumps({"command": "commit_write", "arguments": {}}), None)
    assert json.loads(str(answer))["error"].endswith("Panic: index out of bounds")
