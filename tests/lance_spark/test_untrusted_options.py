"""Any author of SQL can set options: no text in an option is ever run."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lance_spark.datasource import LanceDataSource
from lance_spark.errors import OptionError
from lance_spark.sql.reads import open_path, plan_scan
from lance_spark.sql.writes import commit_write, plan_write


class MakesAFile:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        """Keeps the path."""
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        """Returns the call for the unpickling."""
        return os.mkdir, (str(self.path),)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """A path that exists after a payload has run."""
    return tmp_path / "was-run"


@pytest.fixture
def payload(proof: Path) -> str:
    """Base64 of a pickle that would make `proof`."""
    pickled = pickle.dumps(MakesAFile(proof))
    pickle.loads(pickled)
    assert proof.exists()
    proof.rmdir()
    return base64.b64encode(pickled).decode()


@pytest.fixture
def path(table_path: str) -> str:
    """A table with one column."""
    lance.write_dataset(pa.table({"id": [1, 2]}), table_path)
    return table_path


def specs(payload: str) -> list[str]:
    """Returns values of `lancespark.scan` with a payload in every place that could be unpickled."""
    udt = {
        "type": "udt",
        "pyClass": "no_module.C",
        "class": None,
        "sqlType": "long",
        "serializedClass": payload,
    }
    struct = {
        "type": "struct",
        "fields": [{"name": "id", "type": udt, "nullable": True, "metadata": {}}],
    }
    predicate = {"op": "=", "args": [{"op": "col", "name": ["id"], "type": "bigint"}, payload]}
    texts = [
        {"base": payload},
        {"pin": payload},
        {"columns": struct},
        {"columns": json.dumps(struct)},
    ]
    return [json.dumps(text) for text in [*texts, {"predicate": predicate}, payload, [payload]]] + [
        payload
    ]


def test_a_scan_option_of_a_user_is_refused_and_nothing_in_it_is_run(
    path: str, payload: str, proof: Path
):
    for spec in specs(payload):
        with pytest.raises(OptionError, match=r"lancespark\.scan"):
            LanceDataSource({"path": path, "lancespark.scan": spec}).schema()
    assert not proof.exists()


def test_a_view_in_sql_runs_nothing_of_its_scan_option(
    spark: SparkSession, path: str, payload: str, proof: Path
):
    for spec in specs(payload):
        with pytest.raises(PySparkException, match=r"OptionError.*lancespark\.scan"):
            spark.sql(
                f"CREATE TEMPORARY VIEW harmful USING lance OPTIONS (path '{path}', `lancespark.scan` r'{spec}')"
            ).collect()
    assert not proof.exists()


def test_a_write_option_of_a_user_is_refused_and_nothing_in_it_is_run(
    path: str, payload: str, proof: Path
):
    empty = {"path": None, "exclusive": False, "input_columns": None, "snapshots": []}
    for spec in [payload, json.dumps(payload), "{}", json.dumps({**empty, "snapshots": [payload]})]:
        source = LanceDataSource({"path": path, "lancespark.write": spec})
        with pytest.raises(OptionError, match=r"lancespark\.write"):
            source.writer(StructType([StructField("id", LongType())]), overwrite=False)
    assert not proof.exists()


def test_a_request_of_a_scan_runs_nothing_that_is_in_it(path: str, payload: str, proof: Path):
    for spec in map(json.loads, specs(payload)[:-1]):
        with pytest.raises((ValueError, TypeError, LookupError, AttributeError, PySparkException)):
            plan_scan({"options": {"path": path}, "pin": None, "spec": spec})
    with pytest.raises(ValueError):  # noqa: PT011 - of the parser of JSON
        plan_scan({"options": {"path": path}, "pin": payload, "spec": {}})
    assert not proof.exists()


def test_a_pin_takes_no_storage_options_along(path: str):
    options = {"path": path, "storage.aws_secret_access_key": "hush"}
    opened = open_path({"options": options})
    assert "hush" not in opened["pin"]
    assert "hush" not in plan_scan({"options": options, "pin": None, "spec": {}})["pin"]


def test_an_answer_of_a_task_is_not_unpickled(path: str, payload: str, proof: Path):
    schema = StructType([StructField("id", LongType())]).json()
    planned = plan_write(
        {"options": {"path": path}, "schema": schema, "overwrite": False, "write": None}
    )
    packed = base64.b64encode(zlib.compress(base64.b64decode(payload))).decode()
    for answer in (payload, packed):
        with pytest.raises((ValueError, zlib.error)):
            commit_write({"writer": planned["writer"], "messages": [answer]})
    assert not proof.exists()
    assert lance.dataset(path).version == 1
