"""Every public function and method, called with wrong values for each of its parameters.

A session of Spark is never made: a call whose arguments pass ends with an error of ours as soon as it asks for Spark.
"""

from __future__ import annotations

import inspect
import os
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import (
    Connection,
    Query,
    Search,
    SparkStartError,
    Table,
    TableReference,
    chunker,
    udf,
)
from lance_spark.table.history.branches import Branches
from lance_spark.table.history.versions import Tags
from tests.wrong_arguments.values import judge, sample, show, wrong_values

QUICK_VALUES = 4
"""Values of a parameter that the quick suite tries."""


def no_spark() -> Any:
    raise SparkStartError("No Spark is made here.")


@udf(data_type=pa.int64(), version="1")
def double(id: int) -> int:
    return id * 2


@chunker(output_schema=pa.schema([("piece", pa.string())]), version="1")
def pieces(text: str) -> Any:
    yield {"piece": text}


@dataclass
class Place:
    """A folder with tables, made anew from a template after every call that changed it."""

    template: Path
    folder: Path

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder)

    def versions(self) -> list[str]:
        found = []
        for top, folders, files in os.walk(self.folder):
            if os.path.basename(top) in ("_versions", "tags", "branches"):
                found += [os.path.join(top, file) for file in files]
            folders[:] = [one for one in folders if one not in ("data", "_indices", "_transactions")]
        return sorted(found)

    @property
    def db(self) -> Connection:
        return lance_spark.connect(str(self.folder), no_spark, progress=False)

    @property
    def table(self) -> Table:
        return self.db.open_table("t")

    @property
    def uri(self) -> str:
        return f"{self.folder}/t.lance"


@dataclass(frozen=True)
class Subject:
    """A callable, and arguments with which it works or asks for Spark."""

    name: str
    make: Callable[[Place], Callable[..., object]]
    signature: inspect.Signature
    valid: dict[str, Callable[[Place], object]] = field(default_factory=dict)


VALID: dict[str, Callable[[Place], object]] = {
    "uri": lambda at: at.uri,
    "path": lambda at: at.uri,
    "name": lambda at: "t",
    "Connection.create_table.name": lambda at: "new",
    "Connection.create_table.schema": lambda at: pa.schema([("id", pa.int64())]),
    "Connection.create_materialized_view.name": lambda at: "new",
    "Connection.create_materialized_view.query": lambda at: at.table.search(None).select(["id"]),
    "Connection.create_udtf_view.name": lambda at: "new",
    "Connection.capture_local_environment.skip_site_packages": lambda at: True,
    "Query.create_materialized_view.db": lambda at: at.db,
    "Query.create_materialized_view.name": lambda at: "new",
    "Search.create_materialized_view.db": lambda at: at.db,
    "source": lambda at: at.table.search(None),
    "udtf": lambda at: pieces,
    "new_name": lambda at: "renamed",
    "manifest": lambda at: lance_spark.Manifest(name="x", python_version="3.11"),
    "older_than": lambda at: timedelta(days=1),
    "Table.wait_for_index.timeout": lambda at: timedelta(0),
    "transforms": lambda at: {"new": "id + 1"},
    "alterations": lambda at: {"path": "text", "nullable": True},
    "columns": lambda at: ["id"],
    "Table.backfill.columns": lambda at: "twice",
    "Table.backfill_async.columns": lambda at: "twice",
    "col_name": lambda at: "twice",
    "column": lambda at: "twice",
    "column_name": lambda at: "twice",
    "job_id": lambda at: "no job",
    "data": lambda at: [{"id": 7}],
    "where": lambda at: "id > 1",
    "values": lambda at: {"id": 1},
    "on": lambda at: "id",
    "pk": lambda at: "id",
    "field_names": lambda at: "text",
    "index_name": lambda at: "id_idx",
    "index_names": lambda at: "id_idx",
    "Table.drop_index.name": lambda at: "id_idx",
    "Table.load_columns.source": lambda at: [{"id": 1, "text": "x"}],
    "Table.load_columns_async.source": lambda at: [{"id": 1, "text": "x"}],
    "Table.plan_load_columns.source": lambda at: [{"id": 1, "text": "x"}],
    "Table.load_columns.columns": lambda at: ["text"],
    "Table.load_columns_async.columns": lambda at: ["text"],
    "Table.plan_load_columns.columns": lambda at: ["text"],
    "version": lambda at: 1,
    "from_version": lambda at: 1,
    "to_version": lambda at: 2,
    "tag": lambda at: "first",
    "Tags.create.tag": lambda at: "second",
    "Branches.create.name": lambda at: "new",
    "Branches.checkout.name": lambda at: "work",
    "Branches.delete.name": lambda at: "work",
    "condition": lambda at: "id > 1",
    "rows": lambda at: 1,
    "reranker": lambda at: object(),
    "builder": lambda at: SparkSession.builder,
    "first": lambda at: 1,
    "second": lambda at: 2,
    "from_branch": lambda at: "work",
}


def functions() -> Iterator[Subject]:
    for name in ("connect", "open_table", "cleanup", "check", "last_commit", "configure"):
        function = getattr(lance_spark, name)
        yield Subject(name, lambda _, function=function: function, inspect.signature(function))


OBJECTS: dict[type, Callable[[Place], object]] = {
    Connection: lambda at: at.db,
    Table: lambda at: at.table,
    Query: lambda at: at.table.search(None),
    Search: lambda at: at.table.search([1.0, 2.0], "vector"),
    Tags: lambda at: at.table.tags,
    Branches: lambda at: at.table.branches,
    TableReference: lambda at: at.table.get_reference(),
    lance_spark.MergeInsertBuilder: lambda at: at.table.merge_insert("id").when_not_matched_insert_all(),
}


def methods() -> Iterator[Subject]:
    for kind, make in OBJECTS.items():
        for name, member in inspect.getmembers_static(kind, inspect.isfunction):
            signature = inspect.signature(member)
            if name.startswith("_") or len(signature.parameters) < 2:
                continue
            parameters = list(signature.parameters.values())[1:]
            bound = lambda at, make=make, name=name: getattr(make(at), name)  # noqa: E731
            yield Subject(f"{kind.__name__}.{name}", bound, signature.replace(parameters=parameters))


SUBJECTS = {subject.name: subject for subject in (*functions(), *methods())}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "db"
    rows = pa.table(
        {
            "id": pa.array(range(4), pa.int64()),
            "text": [f"text {i}" for i in range(4)],
            "vector": pa.array([[0.0, float(i)] for i in range(4)], pa.list_(pa.float32(), 2)),
        }
    )
    dataset = lance.write_dataset(rows, f"{folder}/t.lance", enable_stable_row_ids=True)
    dataset.create_scalar_index("id", "BTREE")
    db = lance_spark.connect(str(folder), no_spark, progress=False)
    table = db.open_table("t")
    table.add_columns({"twice": (double, ["id"])})
    table.tags.create("first", 1)
    table.branches.create("work")
    db.create_materialized_view("v", table.search(None).select(["id"]))
    return folder


@pytest.fixture
def place(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    # Relative paths, and those with `..`, stay below the test's folder.
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("a connection was made"))
    at = Place(template, inside / "db")
    at.reset()
    return at


def arguments_of(subject: Subject, at: Place) -> dict[str, object]:
    """Returns arguments with which a call works or asks for Spark."""
    given = {}
    for name, parameter in subject.signature.parameters.items():
        make = VALID.get(f"{subject.name}.{name}")
        if make is None and parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            make = VALID.get(name)
        if make is not None:
            given[name] = make(at)
    return given


def call_with(subject: Subject, at: Place, changed: dict[str, object]) -> object:
    given = arguments_of(subject, at) | changed
    positional = [
        given.pop(name)
        for name, parameter in subject.signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL) and name in given
    ]
    result = subject.make(at)(*positional, **given)
    if isinstance(result, lance_spark.Watch):
        result.stop()
    return list(result) if inspect.isgenerator(result) else result


def fault_of(subject: Subject, at: Place, name: str, value: object) -> str | None:
    """Makes a call with one wrong value, and returns what is wrong about the call."""
    before = at.versions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = judge(
            name, value, lambda: call_with(subject, at, {name: value}), beside=[*subject.signature.parameters, "name"]
        )
    changed = not at.folder.exists() or at.versions() != before
    if changed or subject.name == "Connection.capture_local_environment":  # its archives are no versions
        at.reset()
    if outcome.kind == "refuses" and changed:
        return f"{name}={show(value)}: a call that raised changed a table"
    return outcome.text or None


def faults_of(subject: Subject, at: Place, count: int | None) -> list[str]:
    """Makes all calls with one wrong value, or a sample, and returns what is wrong about them."""
    faults = []
    for name, parameter in subject.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        makers = wrong_values()
        for make in makers if count is None else sample(makers, count, subject.name, name):
            value = make()
            if name == "skip_site_packages" and isinstance(value, (bool, np.bool_)):
                continue  # a capture of all packages takes minutes
            faults.append(fault_of(subject, at, name, value))
    return [text for text in faults if text is not None]


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_call_with_a_wrong_argument_works_or_raises_an_error_of_ours(name: str, place: Place):
    if faults := faults_of(SUBJECTS[name], place, QUICK_VALUES):
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_call_with_a_wrong_argument_works_or_raises_an_error_of_ours(name: str, place: Place):
    if faults := faults_of(SUBJECTS[name], place, None):
        pytest.fail("\n".join(faults), pytrace=False)
