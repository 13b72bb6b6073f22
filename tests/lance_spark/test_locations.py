"""A location is understood, or refused with the right spelling, by every entry point."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_spark
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError
from lance_spark.locations import is_local, normalize_uri
from lance_spark.options.io_options import ReadOptions
from lance_spark.sql.catalog.location import CatalogLocation
from lance_spark.storage.file_systems import file_system_of
from lance_spark.storage.objects import checkpoint_store
from lance_spark.table.connections.connection import open_table
from tests.support.planted import picture

SPELLINGS = {
    "dbfs:/x/t.lance": "/dbfs/x/t.lance",
    "dbfs:///x": "/dbfs/x",
    "DBFS:/x": "/dbfs/x",
    "s3:/b/t": "s3://b/t",
    "s3:b": "s3://b",
    "s3a://b/t": "s3://b/t",
    "s3n://b/t": "s3://b/t",
    "s3a:/b/t": "s3://b/t",
    "gs:/b/t": "gs://b/t",
    "gcs://b/t": "gs://b/t",
    "az:/c/t": "az://c/t",
    "abfs://c@a/t": "abfss://c@a/t",
    "hdfs:/x/t": "a path of a mounted file system",
    "hdfs://host/x": "a path of a mounted file system",
    "viewfs:/x": "a path of a mounted file system",
    "wasbs://c@a/t": "az://",
    "C:\\tables\\t.lance": "/mnt/c/folder",
    "c:/tables/t.lance": "/mnt/c/folder",
    "file://host/x": "file:///host/x",
    "file:///a?b": "%3F",
    "file:///a#b": "%23",
    "run:1/t.lance": "./run:1/t.lance",
    "nosuch://x/y": "s3://",
    " s3://b/t": "'s3://b/t'",
    "dbfs:/x\n": "'dbfs:/x'",
    "s3://": "s3://bucket/path",
    "gs:///": "gs://bucket/path",
}

CUT = {
    "s3://b/a#b.lance": "s3://b/a%23b.lance",
    "az://c/a?b.lance": "az://c/a%3Fb.lance",
    "file-object-store:///a#b?c": "file-object-store:///a%23b%3Fc",
    "s3+ddb://b/a#b?ddbTableName=t": "s3+ddb://b/a%23b",
}


def origins_of(root: str) -> dict[str, object]:
    """Returns the options of a catalog that the driver's program registered."""
    return {"application": None, "registered": {"root": root}, "session": {}, "shown": []}


ENTRIES: dict[str, Callable[[str], object]] = {
    "connect": lance_spark.connect,
    "open_table": open_table,
    "cleanup": lambda uri: lance_spark.cleanup(uri, older_than=timedelta(1)),
    "last_commit": lance_spark.last_commit,
    "checkpoint": lambda uri: lance_spark.connect("/tables", checkpoint=uri),
    "checkpoint_store": lambda uri: checkpoint_store("/tables/t.lance", location=uri),
    "load": lambda uri: DatasetRef.resolve(ReadOptions.parse({"path": uri})),
    "save": DatasetRef.find,
    "source": lambda uri: file_system_of(uri, {}, option="source", remedy="give a DataFrame"),
    "root": lambda uri: CatalogLocation.of({"catalog": "c", "origins": origins_of(uri)}),
    "sql path": lambda uri: CatalogLocation.of(
        {"catalog": "c", "origins": origins_of("/r")}
    ).uri_of(uri),
}


OF_PYARROW = ("abfs", "gcs", "hdfs", "s3a", "viewfs")
"""Schemes of files that `load_columns` reads with PyArrow."""


def takes(entry: str, uri: str) -> bool:
    """Tells whether an entry point takes the text for a wrong location."""
    if entry == "source":
        return uri.partition("://")[0] not in OF_PYARROW and uri not in CUT
    return entry != "sql path" or "/" in uri  # in SQL a name without a slash is no path


@pytest.mark.parametrize(
    ("entry", "uri", "spelling"),
    [
        (entry, *spelling)
        for entry in ENTRIES
        for spelling in (SPELLINGS | CUT).items()
        if takes(entry, spelling[0])
    ],
)
def test_a_location_that_no_store_has_is_refused_with_the_right_spelling(
    entry: str, uri: str, spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as error:
        ENTRIES[entry](uri)
    assert spelling in str(error.value)
    assert picture(tmp_path) == {}


@pytest.mark.parametrize("uri", ["", "  ", "a\0b"])
def test_no_location_is_not_the_working_directory(uri: str):
    for entry in ("connect", "cleanup", "last_commit", "checkpoint"):
        with pytest.raises(OptionError):
            ENTRIES[entry](uri)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41"])
def test_a_name_that_lance_reads_as_another_is_refused_on_stores(name: str, tmp_path: Path):
    """Lance drops the rest of a URI after the first two signs, and decodes the third."""
    remote = lance_spark.connect(f"file-object-store://{tmp_path}", progress=False)
    for refused in (
        lambda: remote.create_table(name, [{"id": 1}]),
        lambda: remote.open_table(name),
        lambda: remote.drop_table(name),
        lambda: CatalogLocation.of({"catalog": "c", "origins": origins_of("s3://b")}).uri_of(name),
        lambda: (
            CatalogLocation.of(
                {"catalog": "c", "origins": origins_of("s3://b"), "namespace": [name]}
            ).folder
        ),
    ):
        with pytest.raises(OptionError, match="on an object store without #, \\? and %"):
            refused()
    assert picture(tmp_path) == {}
    local = lance_spark.connect(str(tmp_path), progress=False)
    local.create_table(name, [{"id": 1}])
    local.open_table(name).add([{"id": 2}])
    assert local.table_names() == [name] and local.open_table(name).count_rows() == 2


def test_an_escaped_sign_in_a_uri_is_part_of_the_name(tmp_path: Path):
    uri = f"file-object-store://{tmp_path}/a%23b.lance"
    lance.write_dataset(pa.table({"id": [1]}), uri)
    table = open_table(uri)
    table.add([{"id": 2}])
    assert os.listdir(tmp_path) == ["a#b.lance"] and table.count_rows() == 2


def test_locations_that_are_understood():
    cwd = os.getcwd()
    assert normalize_uri("t.lance") == normalize_uri("./t.lance") == f"{cwd}/t.lance"
    assert (
        normalize_uri("./run:1/t")
        == normalize_uri("x/../run:1/t".replace("run:1", "./run:1"))
        == f"{cwd}/run:1/t"
    )
    assert normalize_uri("file:///a%20b/%23") == normalize_uri("file:/a b/%23") == "/a b/#"
    assert normalize_uri("file://localhost/a") == "/a"
    assert normalize_uri("S3://Bucket/T/") == "s3://Bucket/T"
    assert normalize_uri("s3+ddb://b/t?ddbTableName=x") == "s3+ddb://b/t?ddbTableName=x"
    assert normalize_uri("~/t") == normalize_uri(Path("~/t")) == os.path.expanduser("~/t")


@given(st.text(st.sampled_from("abs3file:/.~ ?#%\\") | st.characters(), max_size=12))
def test_a_location_is_absolute_or_a_uri_or_refused(uri: str):
    try:
        normal = normalize_uri(uri)
    except OptionError:
        return
    assert normal.startswith("/") if is_local(normal) else normal.partition("://")[0].islower()
    assert normalize_uri(normal) == normal
