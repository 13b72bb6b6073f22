"""Connections: arguments and errors of `connect`; creating, opening, dropping and renaming tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lance_spark
from lance_spark import (
    Connection,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_spark.errors import SchemaMismatchError, TableUnreadableError, ValueConversionError
from tests.lance_spark.table.conftest import make_table
from tests.support.java_classes import JVM_OPTIONS

pytestmark = pytest.mark.spark

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "text": ["a", "b", None]})


@pytest.mark.parametrize(
    ("data", "schema"),
    [
        ([], None),
        ({}, None),
        ([{}], None),
        (pa.table({}), None),
        (pd.DataFrame(), None),
        (None, pa.schema([])),
    ],
    ids=repr,
)
def test_a_table_without_columns_is_not_made(
    tmp_path: Path, data: Any, schema: pa.Schema | None
) -> None:
    db = lance_spark.connect(str(tmp_path))
    with pytest.raises(SchemaMismatchError, match="no columns"):
        db.create_table("e", data, schema=schema)
    assert not any(tmp_path.iterdir())


def test_a_table_at_a_path_without_the_suffix_opens_by_its_location(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), f"{tmp_path}/events")
    assert lance_spark.open_table(tmp_path / "events").count_rows() == 1
    with pytest.raises(
        TableNotFoundError, match=r"without the suffix .lance. Open it with lance_spark.open_table"
    ):
        lance_spark.connect(tmp_path).open_table("events")


def test_a_table_opens_by_its_path_with_and_without_the_suffix(tmp_path: Path) -> None:
    lance_spark.connect(tmp_path).create_table("events", [{"id": 1}])
    for path in (tmp_path / "events.lance", tmp_path / "events", f"{tmp_path}/events/"):
        table = lance_spark.open_table(path)
        assert (table.name, table.uri) == ("events", f"{tmp_path}/events.lance")
    lance.write_dataset(pa.table({"id": [1, 2]}), f"{tmp_path}/events")
    assert lance_spark.open_table(tmp_path / "events").count_rows() == 2, "the location itself wins"
    with pytest.raises(TableNotFoundError, match=r"No Lance table was found at .*/nothing"):
        lance_spark.open_table(tmp_path / "nothing")


@pytest.mark.guarantee("T79")
def test_a_remote_database_is_refused_by_name_and_the_message_says_what_serves_instead():
    with pytest.raises(UnsupportedOperationError, match="db://company") as error:
        lance_spark.connect("db://company")
    assert "connect('s3://bucket/path'" in str(error.value)


def test_a_renamed_table_finds_its_checkpoints_elsewhere(tmp_path: Path):
    db = lance_spark.connect(str(tmp_path / "db"), checkpoint=str(tmp_path / "kept"))
    db.create_table("one", ROWS)
    renamed_db = lance_spark.connect(str(tmp_path / "other"), checkpoint=str(tmp_path / "kept"))
    place = db._checkpoint_of(db._tables.place("one", ()).uri)
    assert place is not None
    assert place != renamed_db._checkpoint_of(renamed_db._tables.place("one", ()).uri), (
        "tables of one name in two folders share nothing"
    )
    Path(place).mkdir(parents=True)
    (Path(place) / "checkpoint").write_text("")
    db.rename_table("one", "two")
    assert [str(path.parent) for path in tmp_path.rglob("checkpoint")] == [
        db._checkpoint_of(db._tables.place("two", ()).uri)
    ]


def rows_that_create_a_table(spark: SparkSession, uri: str) -> DataFrame:
    """Returns rows whose task creates a table, like a concurrent writer."""

    def create(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import lance

        lance.write_dataset(pa.table({"id": [100]}), uri)
        yield from batches

    return spark.range(0, 3, 1, 1).mapInArrow(create, "id bigint")


def test_rows_of_spark_do_not_go_to_a_table_that_a_concurrent_writer_creates(
    db: Connection, spark: SparkSession, folder: str
):
    with pytest.raises(PySparkException, match="TableExistsError"):
        db.create_table("t", rows_that_create_a_table(spark, f"{folder}/t.lance"))
    assert db.open_table("t").to_arrow().to_pydict() == {"id": [100]}
    replaced = db.create_table(
        "u", rows_that_create_a_table(spark, f"{folder}/u.lance"), mode="overwrite"
    )
    assert replaced.to_arrow().to_pydict() == {"id": [0, 1, 2]}


@pytest.mark.guarantee("T79")
@pytest.mark.parametrize("name", ["api_key", "region", "host_override"])
def test_parameters_of_a_remote_service_are_refused_by_name(tmp_path: Path, name: str):
    with pytest.raises(UnsupportedOperationError, match=name):
        lance_spark.connect(str(tmp_path), **{name: "x"})


def test_a_default_environment_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(OptionError, match="default_manifest"):
        lance_spark.connect(str(tmp_path), default_manifest=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("uri", ["", "  ", None, 3, b"path"])
def test_a_location_that_is_none_is_refused(uri: object):
    with pytest.raises(OptionError, match="uri"):
        lance_spark.connect(uri)  # type: ignore[arg-type]


def test_options_of_new_tables_are_defaults_that_a_call_overrides(tmp_path: Path):
    options = {
        "new_table_enable_stable_row_ids": "False",
        "new_table_data_storage_version": "2.1",
        "timeout": "60s",
    }
    db = lance_spark.connect(
        tmp_path, storage_options=options, read_consistency_interval=timedelta(0)
    )
    assert db.storage_options == {"timeout": "60s"}
    table = db.create_table("t", [{"id": 1}]).to_lance()
    assert (table.has_stable_row_ids, table.data_storage_version) == (False, "2.1")
    table = db.create_table(
        "u", [{"id": 1}], enable_stable_row_ids=True, data_storage_version="2.2"
    ).to_lance()
    assert (table.has_stable_row_ids, table.data_storage_version) == (True, "2.2")
    more = {"new_table_enable_stable_row_ids": "true", "timeout": "5s"}
    table = db.create_table("w", [{"id": 1}], storage_options=more).to_lance()
    assert (table.has_stable_row_ids, table.data_storage_version) == (True, "2.1")
    assert (
        lance_spark.connect(tmp_path).create_table("v", [{"id": 1}]).to_lance().has_stable_row_ids
    )
    with pytest.raises(OptionError, match="with a namespace"):
        lance_spark.connect(
            namespace_client_impl="dir", namespace_client_properties={"root": str(tmp_path)}
        ).create_table("x", [{"id": 1}], storage_options=more)


def test_wrong_options_of_new_tables_are_refused_at_once(tmp_path: Path):
    with pytest.raises(OptionError, match="true or false"):
        lance_spark.connect(tmp_path, storage_options={"new_table_enable_stable_row_ids": "yes"})
    with pytest.raises(OptionError, match="zero or more"):
        lance_spark.connect(tmp_path, read_consistency_interval=timedelta(-1))


def test_an_unknown_keyword_is_an_error_and_not_ignored(tmp_path: Path):
    with pytest.raises(TypeError, match="colour"):
        lance_spark.connect(str(tmp_path), colour="blue")  # type: ignore[call-arg]


def test_connecting_touches_neither_storage_nor_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "lance_spark.table.connections.connection.session_or_local",
        lambda _session: pytest.fail("a session was made"),
    )
    db = lance_spark.connect(str(tmp_path / "nowhere"))
    assert db.table_names() == [] and not (tmp_path / "nowhere").exists()
    assert repr(db) == f"Connection({str(tmp_path / 'nowhere')!r})"


def test_without_a_session_the_active_one_is_taken_and_asked_for_once(
    spark: SparkSession, folder: str, monkeypatch: pytest.MonkeyPatch
):
    requests = []
    monkeypatch.setattr(
        "lance_spark.table.connections.connection.session_or_local",
        lambda session: requests.append(session) or spark,
    )
    db = lance_spark.connect(folder)
    db.create_table("t", ROWS).to_spark().count()
    db.open_table("t").to_spark().count()
    assert db.spark is spark and requests == [None]


def test_the_session_that_was_given_is_the_one_that_works(
    folder: str, spark: SparkSession, db: Connection
):
    assert db.spark is spark and db.create_table("t", ROWS).to_spark().sparkSession is spark


def test_a_relative_folder_is_where_it_was_when_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    db = lance_spark.connect("here")
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    db.create_table("t", ROWS)
    assert lance.dataset(str(tmp_path / "here" / "t.lance")).count_rows() == 3


def forms_of_data(spark: SparkSession) -> dict[str, object]:
    return {
        "spark": spark.createDataFrame(ROWS.to_pylist(), "id bigint, text string"),
        "table": ROWS,
        "batch": ROWS.to_batches()[0],
        "reader": ROWS.to_reader(),
        "pandas": pd.DataFrame({"id": [1, 2, 3], "text": ["a", "b", None]}),
        "dicts": ROWS.to_pylist(),
    }


@pytest.mark.parametrize("form", ["spark", "table", "batch", "reader", "pandas", "dicts"])
def test_a_table_is_made_from_data_of_every_form(db: Connection, spark: SparkSession, form: str):
    table = db.create_table(form, forms_of_data(spark)[form])  # type: ignore[arg-type]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == ROWS.to_pylist()
    assert table.to_lance().has_stable_row_ids and db.table_names() == [form]


@pytest.mark.parametrize("form", ["spark", "table"])
def test_stable_row_ids_can_be_turned_off(db: Connection, spark: SparkSession, form: str):
    table = db.create_table("t", forms_of_data(spark)[form], enable_stable_row_ids=False)  # type: ignore[arg-type]
    assert not table.to_lance().has_stable_row_ids
    table.add(ROWS)
    assert not table.to_lance().has_stable_row_ids and table.count_rows() == 6


@pytest.mark.parametrize("form", ["spark", "table"])
def test_the_file_format_can_be_chosen(db: Connection, spark: SparkSession, form: str):
    table = db.create_table("t", forms_of_data(spark)[form], data_storage_version="2.2")  # type: ignore[arg-type]
    assert table.to_lance().data_storage_version == "2.2"


def test_a_schema_alone_makes_an_empty_table(db: Connection):
    table = db.create_table("t", schema=ROWS.schema)
    assert table.count_rows() == 0 and table.schema == ROWS.schema


def test_a_schema_gives_data_its_types(db: Connection):
    schema = pa.schema([("id", pa.int16()), ("text", pa.large_string())])
    for name, data in (("dicts", ROWS.to_pylist()), ("pandas", ROWS.to_pandas()), ("table", ROWS)):
        assert db.create_table(name, data, schema=schema).schema.types == schema.types


def test_data_that_does_not_fit_the_schema_makes_no_table(db: Connection):
    for data in (
        [{"id": "many"}],
        pa.table({"other": [1]}),
        [{"id": 1, "more": 2}],
        pd.DataFrame({"id": ["x"]}),
    ):
        with pytest.raises(
            (SchemaMismatchError, ValueConversionError), match=r"(?i)nothing was written"
        ):
            db.create_table("t", data, schema=pa.schema([("id", pa.int64())]))
    assert db.table_names() == []


@pytest.mark.parametrize(
    ("data", "accepted"),
    [
        *((data, "list of dicts") for data in (42, "text", [1, 2], object())),
        *((data, "Pass a list, even for one row") for data in ({"id": 1}, {"id": "many"})),
    ],
)
def test_arguments_other_than_data_are_refused_with_the_accepted_types(
    db: Connection, data: object, accepted: str
):
    with pytest.raises(SchemaMismatchError, match=accepted):
        db.create_table("t", data)  # type: ignore[arg-type]
    assert db.table_names() == []


def test_a_table_needs_data_or_a_schema(db: Connection):
    with pytest.raises(OptionError, match="data"):
        db.create_table("t")


def test_a_table_that_is_there_is_not_made_again_unless_asked(db: Connection):
    db.create_table("t", ROWS)
    with pytest.raises(TableExistsError, match="overwrite") as error:
        db.create_table("t", ROWS.slice(0, 1))
    assert isinstance(error.value, FileExistsError)
    assert db.create_table("t", ROWS.slice(0, 1), mode="exist_ok").count_rows() == 3
    overwritten = db.create_table("t", pa.table({"other": [1.5]}), mode="overwrite")
    assert (
        overwritten.schema.names == ["other"]
        and overwritten.count_rows() == 1
        and overwritten.version == 2
    )


def test_an_existing_table_has_the_schema_that_created_it(db: Connection):
    schema = pa.schema([pa.field("s", pa.string_view()), pa.field("l", pa.list_(pa.binary_view()))])
    db.create_table("views", schema=schema)
    assert db.create_table("views", schema=schema, mode="exist_ok").schema.names == ["s", "l"]
    with pytest.raises(SchemaMismatchError, match="exists with other columns"):
        db.create_table("views", schema=pa.schema({"s": pa.int64()}), mode="exist_ok")


@pytest.mark.parametrize("mode", ["overwrite", "exist_ok"])
def test_every_mode_makes_a_table_that_is_not_there(db: Connection, mode: str):
    assert db.create_table("t", ROWS, mode=mode).count_rows() == 3  # type: ignore[arg-type]


def test_an_unknown_mode_is_refused(db: Connection):
    with pytest.raises(OptionError, match="exist_ok"):
        db.create_table("t", ROWS, mode="replace")  # type: ignore[arg-type]


def test_a_table_that_is_not_there_is_not_opened_and_the_error_names_those_that_are(db: Connection):
    with pytest.raises(TableNotFoundError, match="no table here yet"):
        db.open_table("t")
    db.create_table("words", ROWS)
    with pytest.raises(TableNotFoundError, match="'words'"):
        db.open_table("t")


def test_names_are_sorted_and_folders_without_a_version_are_no_tables(db: Connection, folder: str):
    for name in ("b", "a", "ü"):
        db.create_table(name, ROWS)
    os.makedirs(f"{folder}/half.lance/data")
    os.makedirs(f"{folder}/empty.lance/_versions")
    os.makedirs(f"{folder}/notes.lance/_versions")
    Path(folder, "notes.lance", "_versions", "1.manifest.txt").write_text("no manifest")
    os.makedirs(f"{folder}/plain")
    os.makedirs(f"{folder}/.hidden.lance")
    Path(folder, "file.lance").write_text("no folder")
    assert db.table_names() == ["a", "b", "ü"]


def test_a_damaged_table_does_not_hide_the_others(db: Connection, folder: str):
    for name in ("bad", "good"):
        db.create_table(name, ROWS)
    for manifest in Path(folder, "bad.lance", "_versions").glob("*.manifest"):
        manifest.write_bytes(b"no manifest")
    assert db.table_names() == ["bad", "good"]
    with pytest.raises(TableUnreadableError, match="bad"):
        db.open_table("bad")


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "dotted.name",
        "wörter",
        "a'b",
        'say "x"',
        "x%20y",
        "a#b?c",
        "per cent %",
        "t.lance",
        "日本",
    ],
)
def test_unusual_names_work_all_the_way(db: Connection, spark: SparkSession, name: str):
    table = db.create_table(name, spark.createDataFrame(ROWS.to_pylist(), "id bigint, text string"))
    table.add(ROWS)
    assert db.table_names() == [name] and db.open_table(name).count_rows() == 6
    assert table.to_spark(filter="id = 2").count() == 2
    db.rename_table(name, "plain")
    db.rename_table("plain", name)
    db.drop_table(name)
    assert db.table_names() == []


@pytest.mark.parametrize(
    "name",
    ["", " ", " a", "a ", "a/b", "../a", "..", ".", ".hidden", "_private", "a\\b", "a\0b", None, 3],
)
def test_names_that_leave_the_folder_or_are_none_are_refused(db: Connection, name: str):
    for act in (
        db.open_table,
        db.drop_table,
        lambda n: db.create_table(n, ROWS),
        lambda n: db.rename_table("t", n),
    ):
        with pytest.raises(OptionError, match="name"):
            act(name)


def test_dropping_deletes_the_table_and_its_history(db: Connection, folder: str):
    db.create_table("t", ROWS)
    db.drop_table("t")
    assert not Path(folder, "t.lance").exists() and db.table_names() == []
    with pytest.raises(TableNotFoundError):
        db.drop_table("t")
    db.drop_table("t", ignore_missing=True)


def test_a_dropped_table_can_be_made_again(db: Connection):
    table = make_table(db, "t")
    assert table.version == 3
    db.drop_table("t")
    again = db.create_table("t", ROWS)
    assert again.version == 1 and table.count_rows() == 3


def test_renaming_keeps_versions_and_refuses_to_replace_another_table(db: Connection, folder: str):
    make_table(db, "old")
    db.create_table("taken", ROWS)
    with pytest.raises(TableExistsError):
        db.rename_table("old", "taken")
    with pytest.raises(TableNotFoundError):
        db.rename_table("missing", "new")
    db.rename_table("old", "new")
    assert db.table_names() == ["new", "taken"]
    assert db.open_table("new").version == 3 and db.open_table("taken").count_rows() == 3


def test_tables_on_an_object_store_work_but_for_renaming(tmp_path: Path, spark: SparkSession):
    root = tmp_path / "store"
    root.mkdir()
    db = lance_spark.connect(f"file-object-store://{root}", spark, progress=False)
    assert db.table_names() == []
    table = db.create_table("t", ROWS)
    table.add(spark.createDataFrame([(4, "d")], "id bigint, text string"))
    assert db.table_names() == ["t"] and db.open_table("t").to_spark().count() == 4
    with pytest.raises(UnsupportedOperationError, match="cannot rename"):
        db.rename_table("t", "u")
    db.drop_table("t")
    assert db.table_names() == []
    with pytest.raises(TableNotFoundError):
        db.drop_table("t")
    shutil.rmtree(root)


_WITHOUT_A_SESSION = """
import json, sys, os
import pyarrow as pa
import lance_spark
from pyspark.sql import SparkSession
from udf_runtime import udf

@udf
def double(id: int) -> int:
    return id * 2

db = lance_spark.connect(sys.argv[1])
assert SparkSession.getActiveSession() is None, "connecting made a session"
table = db.create_table("t", [{"id": i} for i in range(10)])
table.add_columns({"double": double})
try:
    table.backfill("nope")
except lance_spark.ColumnNotFoundError:
    pass
assert SparkSession.getActiveSession() is None, "a mistake in what was asked for made a session"
rows = table.backfill("double").rows_computed
spark = SparkSession.getActiveSession()
pushed = "BatchScan" in table.to_spark().filter("id > 7")._jdf.queryExecution().executedPlan().toString()
daemon = spark.conf.get("spark.python.daemon.module") == "lance_spark.session.daemon"
print(json.dumps([rows, spark is db.spark, spark.conf.get("spark.master").startswith("local[*"), pushed, daemon, spark.sparkContext.defaultParallelism == os.cpu_count()]))
"""


@pytest.mark.long
@pytest.mark.classic
def test_without_any_session_a_local_one_on_all_cores_is_made_when_it_is_first_needed(
    tmp_path: Path,
):
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYSPARK_", "SPARK_"))
    }
    process = subprocess.run(
        [sys.executable, "-c", _WITHOUT_A_SESSION, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": JVM_OPTIONS},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.splitlines()[-1] == "[10, true, true, true, true, true]"
