"""Forbidden for users of SQL: the choice of a catalog's folder, store or code."""

from __future__ import annotations

import base64
import hashlib
import http.server
import itertools
import json
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.namespaces.reference import NAMESPACE_OPTION, NamespaceClientSpec, NamespaceTable
from tests.support.application import described

pytestmark = [pytest.mark.spark, pytest.mark.classic]

_numbers = itertools.count()


class Mark:
    """A payload whose unpickling leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def plant(uri: Path, mark: Path) -> None:
    """Makes a table whose column `x` has a UDF that leaves a mark, with pylance and JSON alone."""
    payload = pickle.dumps(Mark(mark))
    digest = hashlib.sha256(payload).hexdigest()
    facts = {
        "udf_name": "f",
        "udf_version": "1",
        "kind": "scalar",
        "inputs": ["id"],
        "input_ids": [0],
    }
    facts |= {
        "output_type": "int64",
        "payload": digest,
        "columns": [["", "x"]],
        "manifest": None,
        "task_size": None,
    }
    facts |= {"redefined": 0, "bound_at": 0, "of_source": False}
    field_metadata = {"lance-spark:udf": json.dumps(facts), "lance-spark:token": "t"}
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("x", pa.int64(), metadata=field_metadata)]
    )
    lance.write_dataset(
        pa.table({"id": [1], "x": pa.array([None], pa.int64())}, schema=schema), str(uri)
    )
    (uri / "_lance_spark" / "udfs").mkdir(parents=True)
    (uri / "_lance_spark" / "udfs" / digest).write_bytes(payload)


def make_catalog(spark: SparkSession, root: Path, *, allow_stored_code: bool = False) -> str:
    name = f"trust{next(_numbers)}"
    lance_spark.catalog(spark, name, str(root), allow_stored_code=allow_stored_code)
    return name


def test_a_session_cannot_change_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    name = make_catalog(spark, tmp_path / "own")
    spark.sql(f"CREATE TABLE {name}.t AS SELECT 1L AS id")
    spark.range(3).write.format("lance").mode("append").save(str(tmp_path / "other" / "t.lance"))
    user = spark.newSession()
    user.sql(f"SET spark.sql.catalog.{name}=lancespark.LanceCatalog")
    for session in (user, spark):  # before the first use of a session, and after
        for option, value in (
            ("root", tmp_path / "other"),
            ("storage.aws_endpoint", "http://127.0.0.1:9"),
            ("headers.x", "y"),
            ("allow_stored_code", "true"),
            ("unknown", "1"),
        ):
            setting = f"spark.sql.catalog.{name}.{option}"
            session.sql(f"SET {setting}={value}")
            every = (
                f"SELECT * FROM {name}.t",
                f"DROP TABLE {name}.t",
                f"CREATE TABLE {name}.u (id INT)",
            )
            for statement in every if option == "root" else every[:1]:
                with pytest.raises(AnalysisException, match=rf"{setting}.*was SET in the session"):
                    session.sql(statement).collect()
            session.sql(f"RESET {setting}")
        assert session.sql(f"SELECT count(*) FROM {name}.t").first() == (1,)
    assert not os.path.exists(tmp_path / "own" / "u.lance")


def test_a_session_cannot_make_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    make_catalog(spark, tmp_path / "own")
    user = spark.newSession()
    user.sql("SET spark.sql.catalog.mine=lancespark.LanceCatalog")
    user.sql(f"SET spark.sql.catalog.mine.root={tmp_path}")
    for statement in (
        "SHOW TABLES IN mine",
        "CREATE TABLE mine.t (id INT)",
        "SHOW NAMESPACES IN mine",
    ):
        with pytest.raises(AnalysisException, match=r"catalog\.mine'.*was SET in the session"):
            user.sql(statement).collect()
    assert os.listdir(tmp_path) == []


def test_a_statement_cannot_register_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's function `reflect` calls static methods, but no static method changes the registry."""
    make_catalog(spark, tmp_path)
    with pytest.raises(AnalysisException, match=r"UNEXPECTED_STATIC_METHOD|DATATYPE_MISMATCH"):
        spark.sql("SELECT reflect('lancespark.LanceRegistry', 'register', 'x', map())").collect()


def test_sql_runs_stored_code_only_where_the_application_allows_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    root, outside = tmp_path / "own", tmp_path / "elsewhere" / "t.lance"
    plant(outside, mark)
    plant(root / "evil.lance", mark)
    (root / "linked.lance").symlink_to(outside)
    trusted, plain = make_catalog(spark, root, allow_stored_code=True), make_catalog(spark, root)
    spark.sql(f"CREATE TABLE {plain}.good (id BIGINT)")
    paths = (outside, root / "linked.lance", root / ".." / "elsewhere" / "t.lance")
    refused = {
        **{
            f"CALL {plain}.system.backfill('{table}', 'x')": "allow_stored_code"
            for table in ("evil", *paths)
        },
        f"CALL {plain}.system.add_column('good', 'x', source => 'evil')": "allow_stored_code",
        **{
            f"CALL {trusted}.system.backfill('{table}', 'x')": "outside the folder"
            for table in ("linked", *paths)
        },
        f"CALL {trusted}.system.add_column('good', 'x', source => '{outside}')": "outside the folder",
        f"CALL {trusted}.system.add_column('{outside}', 'y', source => 'evil', source_column => 'x')": "outside",
    }
    for statement, reason in refused.items():
        with pytest.raises(AnalysisException, match=f"StoredUdfError.*{reason}"):
            spark.sql(statement)
    assert not mark.exists(), "a stored UDF was unpickled"
    assert (
        lance.dataset(str(outside)).version == 1
        and lance.dataset(str(root / "good.lance")).version == 1
    )
    # The plain procedures still work, by path too.
    assert spark.sql(f"CALL {plain}.system.tag('{outside}', 'first')").first() == ("first", 1)
    with pytest.raises(AnalysisException):
        spark.sql(f"CALL {trusted}.system.backfill('evil', 'x')")
    assert mark.exists(), "the trusted catalog unpickles it"


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_a_flag_that_is_neither_true_nor_false_is_refused(
    spark: SparkSession, tmp_path: Path, value: str
) -> None:
    from lance_spark.session.catalogs import register_catalog

    name = f"trust{next(_numbers)}"
    register_catalog(spark, name, {"root": str(tmp_path), "allow_stored_code": value})
    with pytest.raises(AnalysisException, match="allow_stored_code"):
        spark.sql(f"SHOW TABLES IN {name}").collect()


def test_code_of_a_job_in_sql_comes_from_the_application_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A manifest that a session SETs would install packages on executors."""
    name = make_catalog(spark, tmp_path, allow_stored_code=True)
    table = lance_spark.connect(str(tmp_path), spark).create_table("t", [{"id": 1}])
    table.add_columns({"x": twice})
    manifest = lance_spark.Manifest.create_pip("m").pip(["packaging==24.2"]).build()
    spark.sql(f"SET spark.lance.manifest={manifest.to_json()}")
    try:
        with pytest.raises(
            AnalysisException, match=r"spark.lance.manifest.*was SET in the session"
        ):
            spark.sql(
                f"CALL {name}.system.add_column('t', 'y', source => 't', source_column => 'x')"
            )
    finally:
        spark.sql("RESET spark.lance.manifest")
    assert lance.dataset(str(tmp_path / "t.lance")).schema.names == ["id", "x"]


@lance_spark.udf(data_type=pa.int64())
def twice(id: int) -> int:
    return id * 2


REDIRECTING = (
    "proxy_url",
    "aws_endpoint",
    "endpoint",
    "allow_http",
    "headers",
    "aws_access_key_id",
    "region",
)


def test_options_of_a_statement_do_not_go_beside_those_of_a_catalog(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = make_catalog(spark, tmp_path)
    spark.sql(f"CREATE TABLE {name}.t AS SELECT 1L AS id")
    for option in REDIRECTING:
        acts = (
            lambda given=f"'storage.{option}' = 'x'": spark.sql(
                f"SELECT * FROM {name}.t WITH ({given})"
            ).collect(),
            lambda key=f"storage.{option}": (
                spark.read.option(key, "x").table(f"{name}.t").collect()
            ),
            lambda key=f"Storage.{option}": (
                spark.range(1).writeTo(f"{name}.t").option(key, "x").append()
            ),
        )
        for act in acts:
            with pytest.raises(AnalysisException, match=rf"OptionError.*storage\.{option}"):
                act()
    assert spark.sql(f"SELECT count(*) FROM {name}.t").first() == (1,)


class Recording(http.server.BaseHTTPRequestHandler):
    """A server that records its requests."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requests.append(f"{self.path} {self.headers}")
        self.send_response(404)
        self.end_headers()

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - names of requests

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recording) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Recording.requests.clear()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_statement_sends_no_credentials_of_the_server_to_a_receiver_of_its_own(
    spark: SparkSession, receiver: str
) -> None:
    """By path a statement takes endpoints, proxies and the like with credentials of its own alone."""
    client = NamespaceClientSpec("rest", (("uri", receiver),))
    places = {
        "s3://b/t.lance": {"aws_endpoint": receiver, "allow_http": "true"},
        "s3://b/u.lance": {"proxy_url": receiver, "aws_access_key_id": "x"},
        "s3://b/v.lance": {"region": f"{receiver}/?"},
        "az://c/t.lance": {"azure_storage_endpoint": receiver, "allow_http": "true"},
        "az://c/u.lance": {"account_name": f"{receiver}/"},
        "gs://b/t.lance": {"google_service_account": "/etc/passwd"},
        "s3://b/w.lance": {
            "aws_endpoint": receiver,
            "x_access_key_id": "x",
            "x_secret_access_key": "x",
        },
        "s3://b/x.lance": {"aws_endpoint": receiver, "azure_skip_signature": "true"},
        "s3://b/y.lance": {
            "aws_endpoint": receiver,
            "access_key_id": "x",
            "secret_access_key": "x",
        },
        "S3://b/z.lance": {"aws_endpoint": receiver, "azure_storage_account_key": "x"},
        "az://c/v.lance": {"azure_storage_endpoint": receiver, "x_account_key": "x"},
        "az://c/w.lance": {
            "azure_storage_sas_key": "x",
            "azure_federated_token_file": "/etc/passwd",
        },
        "oss://b/t.lance": {"endpoint": receiver, "azure_storage_account_key": "x"},
        "/tmp/t.lance": {
            NAMESPACE_OPTION: NamespaceTable(client, ("t",)).to_options()[NAMESPACE_OPTION]
        },
    }
    user = spark.newSession()
    for path, storage in places.items():
        storage_options = {f"storage.{key}": value for key, value in storage.items()}
        options = ", ".join(
            f"'{key}' '{value}'" for key, value in {"path": path, **storage_options}.items()
        )
        maps = ", ".join(f"'{key}', '{value}'" for key, value in storage_options.items())
        acts = [
            lambda text=f"CREATE TEMPORARY VIEW v USING lance OPTIONS ({options})": spark.sql(text),
            lambda text=f"CREATE TEMPORARY VIEW v USING lance OPTIONS ({options})": user.sql(text),
            lambda text=f"CREATE TABLE borrowed USING lance OPTIONS ({options})": spark.sql(text),
            lambda text=f"SELECT * FROM lance_text_search('{path}', 'w', options => map({maps}))": (
                spark.sql(text)
            ),
            lambda path=path, storage_options=storage_options: (
                user.read.format("lance").options(**storage_options).load(path)
            ),
            lambda path=path, storage_options=storage_options: (
                user.range(1)
                .write.format("lance")
                .options(**storage_options)
                .mode("append")
                .save(path)
            ),
        ]
        # Every way with one location, and every location in one way: the reads by `load`.
        for act in acts if path == "s3://b/t.lance" else acts[4:5]:
            with pytest.raises(AnalysisException, match=r"OptionError.*credentials"):
                act()
    assert Recording.requests == []


def test_options_of_create_table_in_a_read_need_credentials_of_their_own(
    spark: SparkSession, receiver: str
) -> None:
    """A read with a provider takes them, and then ignores the options without the prefix."""
    created = {
        "provider": "lance",
        "option.storage.aws_endpoint": receiver,
        "option.storage.allow_http": "true",
    }
    for table_options in (
        {**created, "option.path": "s3://b/t.lance"},
        {**created, "path": "s3://b/t.lance", "storage.aws_skip_signature": "true"},
        {"storage.aws_endpoint": receiver},
    ):
        with pytest.raises(AnalysisException, match=r"OptionError.*credentials"):
            spark.newSession().read.format("lance").options(**table_options).load()
    assert Recording.requests == []


def test_a_table_of_a_catalog_is_made_without_storage_options(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = make_catalog(spark, tmp_path)
    option = "'storage.proxy_url' = 'http://secret'"
    for statement in (
        f"CREATE TABLE {name}.t (id BIGINT) OPTIONS ({option})",
        f"CREATE TABLE {name}.t OPTIONS ({option}) AS SELECT 1L AS id",
        f"CREATE OR REPLACE TABLE {name}.t OPTIONS ({option}) AS SELECT 1L AS id",
        f"CREATE TABLE {name}.t (id BIGINT) TBLPROPERTIES ({option})",
        f"CREATE TABLE {name}.t (id BIGINT) TBLPROPERTIES ('option.{option[1:]})",
    ):
        with pytest.raises(AnalysisException, match=r"OptionError.*storage\.proxy_url") as error:
            spark.sql(statement)
        assert "secret" not in str(error.value).partition("== SQL")[0]
    spark.sql(f"CREATE TABLE {name}.t AS SELECT 1L AS id")
    with pytest.raises(AnalysisException, match=r"OptionError.*storage\.proxy_url"):
        spark.sql(f"ALTER TABLE {name}.t SET TBLPROPERTIES ({option})")


@pytest.mark.parametrize(
    "own",
    [{"aws_access_key_id": "MINE", "aws_secret_access_key": "y"}, {"aws_skip_signature": "true"}],
)
def test_credentials_of_a_statement_go_where_it_says(
    spark: SparkSession, receiver: str, own: dict[str, str]
) -> None:
    storage = {"aws_endpoint": receiver, "allow_http": "true", "region": "us-east-1", **own}
    options = {f"storage.{key}": value for key, value in storage.items()}
    with pytest.raises(AnalysisException, match="404 Not Found"):
        spark.newSession().read.format("lance").options(**options).load("s3://b/t.lance")
    assert Recording.requests
    assert all(
        ("MINE" in request) == ("aws_access_key_id" in own) for request in Recording.requests
    )


def test_metadata_of_a_parquet_file_load_no_class(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark imports the class of a user-defined type, and below 4.3 unpickles the class stored in the file."""
    mark, unpickled = tmp_path / "imported", tmp_path / "unpickled"
    (tmp_path / "hostile_module.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    payload = base64.b64encode(pickle.dumps(Mark(unpickled))).decode()
    kind = {
        "type": "udt",
        "pyClass": "hostile_module.C",
        "serializedClass": payload,
        "sqlType": "string",
    }
    fields = [
        ("id", "long"),
        ("u", kind),
        ("deep", {"type": "array", "elementType": kind, "containsNull": True}),
    ]
    described = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields
    ]
    text = json.dumps({"type": "struct", "fields": described})
    schema = pa.schema([("id", pa.int64()), ("u", pa.string()), ("deep", pa.list_(pa.string()))])
    schema = schema.with_metadata({"org.apache.spark.sql.parquet.row.metadata": text})
    source = f"parquet.`{tmp_path}/evil.parquet`"
    pq.write_table(
        pa.table({"id": [1], "u": ["a"], "deep": [["b"]]}, schema=schema),
        f"{tmp_path}/evil.parquet",
    )
    name = make_catalog(spark, tmp_path / "own")
    for statement in ("CREATE TABLE {t} AS", "CREATE OR REPLACE TABLE {t} AS"):
        for columns in ("id, u", "id, deep"):
            with pytest.raises(AnalysisException, match=r"UnsupportedTypeError.*hostile_module\.C"):
                # In the JVM alone: PySpark's DataFrame would look at the columns itself.
                spark._jsparkSession.sql(
                    f"{statement.format(t=f'{name}.t')} SELECT {columns} FROM {source}"
                )
    spark._jsparkSession.sql(
        f"CREATE TABLE {name}.t AS SELECT id, CAST(u AS STRING) AS u FROM {source}"
    )
    spark._jsparkSession.sql(f"INSERT INTO {name}.t SELECT id, CAST(u AS STRING) FROM {source}")
    assert spark.sql(f"SELECT count(*), min(u) FROM {name}.t").first() == (2, "a")
    assert not mark.exists() and not unpickled.exists()


@pytest.mark.long
def test_settings_of_the_application_count_and_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    report = described(tmp_path)
    assert (
        "spark.redaction.regex" in report["stock"]
        and "storage" in report["stock"]
        and "SECRET" not in report["stock"]
    )
    assert report["tables"] == [["", "t", False]] and report["manifest"] == "of the application"
    assert report["shown"] == [] and report["redacted"] > 10
    assert report["set"] == "*********(redacted)"
    assert report["folder_set"] == "was SET"
