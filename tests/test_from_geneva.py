"""Every name of geneva is on the page "From Geneva", what the page names is there, and what it refuses is refused by name."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import lance_spark
from lance_spark import (
    BackfillJobResult,
    JobRecord,
    Manifest,
    RefreshJobResult,
    Search,
    Table,
    UdfDefinitionError,
    UnsupportedOperationError,
)
from lance_spark.geneva import warn_of_variables
from tests.support.from_geneva import NAMED, PAGE, ROOT, SIGNATURES, Row, exists, page, rows, signatures

ALL = list(rows())
ENVIRONMENT = Path.home() / ".cache" / "lance-spark-benchmarks" / "geneva-0.17"
CLASSES = (
    "Table",
    "Connection",
    "TableReference",
    "GenevaQueryBuilder",
    "BackfillJobResult",
    "RefreshJobResult",
    "JobRecord",
    "GenevaManifest",
    "PipManifestBuilder",
    "SiteManifestBuilder",
)
DECORATORS = {"chunker": lance_spark.chunker, "udtf": lance_spark.udtf}

IN_THEIR_OWN_WORDS = {
    "TableReference.namespace_client_properties",
    "TableReference.namespace_client_pushdown_operations",
    "TableReference.open_db_async",
    "Table.refresh(where)",
    "Table.refresh_async(where)",
}
"""What code of its own refuses, with what serves but without this name."""


def test_the_page_is_what_the_signatures_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.support.from_geneva"


def test_no_name_is_forgotten():
    assert [row.name for row in ALL if not row.here] == []
    assert len(ALL) == len({row.name for row in ALL}) > 600
    assert set(signatures()["names"]) <= {row.name for row in ALL}


def test_every_counterpart_is_there():
    named = {row.name: NAMED.match(row.here) for row in ALL if row.here.startswith("`")}
    assert [name for name, found in named.items() if found is None or not exists(*found.groups())] == []


def test_a_counterpart_that_is_not_there_is_noticed():
    assert not exists("Table", "no_such_method")
    assert not exists("Table", "search", "no_such_parameter")
    assert not exists("NoSuchClass")
    assert exists("Table", "search", "query")
    assert exists("Connection", "uri")


def test_imports_that_are_refused_say_what_serves():
    names = [row.name for row in ALL if row.refused and row.name in signatures()["names"]]
    assert len(names) > 20
    for name in names:
        with pytest.raises(UnsupportedOperationError, match=name):
            getattr(lance_spark, name)
    with pytest.raises(UnsupportedOperationError, match="bucket"):
        from lance_spark import RemoteConnection  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'nothing_at_all'"):
        lance_spark.nothing_at_all  # noqa: B018


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Objects of the classes, by geneva's names of them."""
    db = lance_spark.connect(str(tmp_path_factory.mktemp("tables")))
    table = db.create_table("t", [{"id": 1, "v": [1.0, 2.0]}])
    results = {cls.__name__: object.__new__(cls) for cls in (BackfillJobResult, RefreshJobResult, JobRecord)}
    return {
        "Table": table,
        "Connection": db,
        "TableReference": table.get_reference(),
        "GenevaQueryBuilder": object.__new__(Search),
        "GenevaManifest": Manifest.create_pip("m").build(),
        "PipManifestBuilder": Manifest.create_pip("m"),
        "SiteManifestBuilder": Manifest.create_site("m"),
        **results,
    }


@pytest.mark.promise("U12")
@pytest.mark.parametrize("owner", CLASSES)
def test_attributes_and_parameters_that_are_refused_say_what_serves(owner: str, objects: dict[str, object]):
    refused = [row.name for row in ALL if row.refused and row.name.startswith(f"{owner}.")]
    assert refused
    for name in refused:
        member, _, parameter = name.removeprefix(f"{owner}.").removesuffix(")").partition("(")
        with pytest.raises((UnsupportedOperationError, UdfDefinitionError)) as raised:
            use(objects[owner], member, {parameter: "x"} if parameter else {})
        assert (parameter or member) in str(raised.value) or name in IN_THEIR_OWN_WORDS


def use(value: object, member: str, named: dict[str, str]) -> None:
    """Reads an attribute, and calls it."""
    getattr(value, member)(**named)


@pytest.mark.parametrize("decorator", DECORATORS)
def test_parameters_of_decorators_that_are_refused_say_what_serves(decorator: str):
    refused = [row for row in ALL if row.refused and row.name.startswith(f"{decorator}(")]
    assert len(refused) >= 3
    for row in refused:
        parameter = row.name.partition("(")[2].removesuffix(")")
        with pytest.raises(UdfDefinitionError) as raised:
            DECORATORS[decorator](**{parameter: None})  # type: ignore[operator]
        assert str(raised.value).startswith(f"{parameter} of Geneva is no parameter here - in @{decorator} - ")
        assert str(raised.value).endswith(row.here.removeprefix("refused: "))
    with pytest.raises(TypeError, match="nothing_at_all"):
        DECORATORS[decorator](nothing_at_all=1)  # type: ignore[operator]


def test_none_is_said_of_variables_alone():
    assert [row.name for row in ALL if row.here.startswith("none: ") and not row.name.startswith("$")] == []


def test_a_manifest_that_refuses_attributes_is_a_value_as_before(objects: dict[str, object]):
    manifest = objects["GenevaManifest"]
    assert pickle.loads(pickle.dumps(manifest)) == copy.deepcopy(manifest) == manifest
    assert not hasattr(manifest, "zips") and not hasattr(manifest, "nothing")


def test_an_old_name_of_a_parameter_is_answered_with_the_new_one(objects: dict[str, object]):
    with pytest.raises(UnsupportedOperationError, match=r"use `Table.to_pandas\(blob_handling\)`"):
        objects["Table"].to_pandas(blob_mode="bytes")  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedOperationError, match="Spark session"):
        lance_spark.connect("folder", executor_mode="local")  # type: ignore[call-arg]
    with pytest.raises(UnsupportedOperationError, match="bucket"):
        lance_spark.connect("folder", region="eu")


def test_refused_attributes_are_not_there_and_unknown_ones_are_plain_errors(objects: dict[str, object]):
    table = objects["Table"]
    assert isinstance(table, Table)
    assert not hasattr(table, "to_polars")
    with pytest.raises(AttributeError, match="'Table' object has no attribute 'nothing'") as raised:
        table.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert not isinstance(raised.value, UnsupportedOperationError)


def test_variables_of_geneva_that_are_set_are_warned_about_once_with_the_new_name(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("GENEVA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GENEVA_ADMISSION__CHECK", "false")
    monkeypatch.setenv("GENEVA_CHECKPOINT_SUBDIR", "there")
    warn_of_variables.cache_clear()
    with pytest.warns(UserWarning, match="GENEVA_") as first:
        lance_spark.connect("folder")
    said = sorted(str(one.message) for one in first)
    assert "GENEVA_ADMISSION__CHECK" in said[0] and "LANCE_SPARK_ADMISSION__CHECK" in said[0]
    assert "GENEVA_CHECKPOINT_SUBDIR" in said[1] and "connect(checkpoint)" in said[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lance_spark.connect("folder")


@pytest.mark.long
def test_the_list_of_signatures_is_what_geneva_says():
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "geneva==0.17.*"], check=True)
    script = ROOT / "tests" / "support" / "geneva_signatures.py"
    said = subprocess.run([str(python), str(script)], check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == json.loads(SIGNATURES.read_text(encoding="utf-8"))


def test_a_row_says_whether_it_is_refused():
    assert Row("a", "refused: b").refused
    assert not Row("a", "`b`").refused
