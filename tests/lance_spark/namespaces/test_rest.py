"""Tables of a Lance REST namespace: reads, writes, jobs and views."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lance
import lance_namespace
import pyarrow as pa
import pytest
from lance.namespace import CreateTableRequest, DescribeTableRequest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Manifest, chunker, udf
from lance_spark.errors import (
    OptionError,
    RegistrationError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_spark.namespaces.reference import NAMESPACE_OPTION
from lance_spark.table.connections.namespaces import NamespaceTables
from tests.lance_spark.namespaces.conftest import SECRET, Rest
from udf_runtime.environments.manifest import Archive


@udf(data_type=pa.int64(), version="1")
def double(id: int) -> int:
    return 2 * id


class Word(NamedTuple):
    word: str


@chunker
def split(text: str) -> Iterator[Word]:
    yield from map(Word, text.split())


ROWS = [{"id": i, "text": f"so many words {i}"} for i in range(6)]


def test_namespaces_are_created_listed_described_and_dropped(db: Connection, space: list[str]):
    db.create_namespace([*space, "inner"], {"owner": "Ada"})
    assert db.list_namespaces(space) == ["inner"]
    assert db.describe_namespace([*space, "inner"])["owner"] == "Ada"
    with pytest.raises(lance_spark.NamespaceError, match="not empty"):
        db.drop_namespace(space)
    with pytest.raises(lance_spark.NamespaceError, match="already exists"):
        db.create_namespace([*space, "inner"])
    db.drop_namespace([*space, "inner"])
    assert db.list_namespaces(space) == []


def test_named_manifests_are_properties_of_the_namespace(
    db: Connection, rest: Rest, space: list[str]
):
    first = Manifest.create_pip("first").env_vars({"KEY": "1"}).build()
    db.define_manifest("of $ all/tables", Manifest.create_pip("zeroth").build())
    db.define_manifest("of $ all/tables", first)
    db.define_manifest("second", Manifest.create_pip("second").build())
    assert rest.connect().list_manifests() == {
        "of $ all/tables": first,
        "second": db.get_manifest("second"),
    }
    other = lance_spark.connect(
        namespace_client_impl="rest",
        namespace_client_properties=rest.properties,
        default_manifest="of $ all/tables",
    )
    table = other.create_table("t", ROWS, namespace=space)
    table.add_columns({"double": double})
    db.delete_manifest("of $ all/tables")
    assert table.get_manifest("double") == first
    with pytest.raises(RegistrationError, match=r"'of . all/tables'.*Manifests: 'second'"):
        table.add_columns({"again": (double, ["id"])})
    with pytest.raises(RegistrationError, match="No manifest has the name 'none'"):
        db.delete_manifest("none")
    db.delete_manifest("second")
    assert db.list_manifests() == {}
    with pytest.raises(OptionError, match="a namespace stores none"):
        db.define_manifest(
            "local",
            dataclasses.replace(
                first, archives=(Archive(sha256="0" * 64, size=1, role="workspace"),)
            ),
        )
    with pytest.raises(UnsupportedOperationError, match="no folder for archives"):
        db.capture_local_environment("local")


def test_a_manifest_beside_a_table_is_found_where_a_namespace_keeps_none(
    db: Connection, rest: Rest, space: list[str], monkeypatch: pytest.MonkeyPatch
):
    """The adapter of Glue has no namespaces in namespaces."""
    beside = Manifest.create_pip("beside").env_vars({"KEY": "1"}).build()
    db.create_table("t", ROWS, namespace=space)

    monkeypatch.setattr(NamespaceTables, "describe_namespace", refuse_unsupported)
    monkeypatch.setattr(NamespaceTables, "create_namespace", refuse_unsupported)
    with pytest.raises(UnsupportedOperationError, match="Pass the Manifest itself"):
        db.define_manifest("beside", beside)
    lance_spark.connect(db.open_table("t", namespace=space).uri).define_manifest("beside", beside)
    other = lance_spark.connect(
        namespace_client_impl="rest",
        namespace_client_properties=rest.properties,
        default_manifest="beside",
    )
    table = other.open_table("t", namespace=space)
    table.add_columns({"double": double})
    assert table.get_manifest("double") == beside


def refuse_unsupported(*_: object) -> None:
    raise UnsupportedOperationError("The implementation lacks the operation.")


def test_tables_of_a_nested_namespace(db: Connection, space: list[str]):
    with pytest.raises(TableNotFoundError, match="create_table"):
        db.open_table("t", namespace=space)
    db.create_table("t", ROWS, namespace=space)
    with pytest.raises(TableExistsError):
        db.create_table("t", ROWS, namespace=space)
    table = db.create_table("t", ROWS, mode="exist_ok", namespace=space)
    table.add([{"id": 6, "text": "more"}])
    assert db.open_table("t", namespace=space, version=1).count_rows() == 6
    assert db.open_table("t", namespace=space).to_arrow()["id"].to_pylist() == list(range(7))
    assert db.table_names(namespace=space) == ["t"]
    assert "t" not in db.table_names()
    with pytest.raises(UnsupportedOperationError, match="cannot rename"):
        db.rename_table("t", "u", namespace=space)
    assert (db.table_names(namespace=space), len(db.open_table("t", namespace=space))) == (["t"], 7)
    db.drop_table("t", namespace=space)
    db.drop_table("t", namespace=space, ignore_missing=True)
    assert db.table_names(namespace=space) == []


def test_spark_reads_and_writes_through_the_namespace(
    db: Connection, space: list[str], spark: SparkSession
):
    table = db.create_table("t", spark.range(10), namespace=space)
    table.add(spark.range(10, 20))
    frame = table.to_spark().where("id >= 15")
    assert sorted(row.id for row in frame.collect()) == [15, 16, 17, 18, 19]
    frame.createOrReplaceTempView("rows_of_namespace")
    plans = spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM rows_of_namespace").first()
    assert plans is not None
    assert SECRET not in plans[0]
    assert table.update("id < 5", values_sql={"id": "id + 100"}).rows_updated == 5
    table.delete("id >= 10 AND id < 20")
    assert sorted(table.to_arrow()["id"].to_pylist()) == [5, 6, 7, 8, 9, 100, 101, 102, 103, 104]


def test_a_backfill_with_its_history(db: Connection, rest: Rest, space: list[str]):
    table = db.create_table("t", ROWS, namespace=space)
    table.add_columns({"twice": (double, ["id"])})
    assert table.backfill("twice").rows_computed == 6
    again = rest.connect().open_table("t", namespace=space)
    assert again.to_arrow()["twice"].to_pylist() == [2 * i for i in range(6)]
    assert [job.status for job in again.list_jobs()] == ["DONE"]
    assert again.backfill("twice").rows_computed == 0


@pytest.mark.long
def test_views_follow_their_source_by_its_name(db: Connection, space: list[str]):
    table = db.create_table("t", ROWS, namespace=space)
    query = table.search(None).select({"half": "id / 2"}).where("id < 4")
    view = db.create_materialized_view("v", query, namespace=space)
    assert view.refresh().rows_added == 4
    words = db.create_udtf_view("w", table.search(None).select(["id"]), split, namespace=space)
    assert words.refresh().rows_added == 24
    texts = db.create_materialized_view(
        "s",
        f"SELECT id, upper(text) AS loud FROM {'.'.join(space)}.t WHERE id > 3",
        namespace=space,
    )
    assert texts.refresh().rows_added == 2
    table.add([{"id": 3, "text": "one"}])
    assert view.refresh().rows_added == 1
    stored = [str(v) for v in (view.schema.metadata or {}).values()]
    assert any(repr([*space, "t"]).replace("'", '"') in text for text in stored)


def test_loads_merges_and_searches(db: Connection, space: list[str], tmp_path: Path):
    vectors = pa.array([[float(i), 0.0] for i in range(6)], pa.list_(pa.float32(), 2))
    table = db.create_table("t", pa.table({"id": range(6), "vector": vectors}), namespace=space)
    source = pa.table({"id": range(6), "label": [f"l{i}" for i in range(6)]})
    lance.write_dataset(source, str(tmp_path / "labels.lance"))
    table.load_columns(str(tmp_path / "labels.lance"), "id", columns=["label"])
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(pa.table({"id": [5, 6], "label": ["new", "newer"], "vector": vectors[:2]}))
    assert table.search([3.0, 0.0]).limit(1).to_arrow()["label"].to_pylist() == ["l3"]
    table.create_scalar_index("id")
    assert [index.name for index in table.list_indices()] == ["id_idx"]
    assert table.compact_files().fragments_removed >= 1
    assert table.count_rows() == 7


def test_dir_and_folder_see_the_same_tables(rest: Rest, db: Connection, space: list[str]):
    folder = lance_spark.connect(str(rest.root))
    folder.create_table("folders_own", ROWS)
    assert "folders_own" in db.table_names()
    assert db.open_table("folders_own").count_rows() == 6
    db.create_table("namespaces_own", ROWS)
    assert folder.open_table("namespaces_own").count_rows() == 6
    directory = lance_spark.connect(
        namespace_client_impl="dir", namespace_client_properties={"root": str(rest.root)}
    )
    assert {"folders_own", "namespaces_own"} <= set(directory.table_names())
    with pytest.raises(UnsupportedOperationError, match="no namespaces"):
        folder.list_namespaces()
    with pytest.raises(OptionError, match="namespace"):
        folder.open_table("t", namespace=["a"])


def test_tables_are_registered_and_deregistered(rest: Rest, db: Connection, space: list[str]):
    lance.write_dataset(pa.table({"id": [1]}), str(rest.root / "registered.lance"))
    with pytest.raises(lance_spark.NamespaceError, match="relative"):
        db.register_table("r", str(rest.root / "registered.lance"), namespace=space)
    assert db.register_table("r", "registered.lance", namespace=space).count_rows() == 1
    db.deregister_table("r", namespace=space)
    assert db.table_names(namespace=space) == []
    assert lance_spark.open_table(str(rest.root / "registered.lance")).count_rows() == 1


def test_pylance_and_this_package_change_the_same_table(
    rest: Rest, db: Connection, space: list[str]
):
    client = lance_namespace.connect("rest", rest.properties)
    sink = pa.BufferOutputStream()
    rows = pa.table({"id": [1, 2]})
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    client.create_table(CreateTableRequest(id=[*space, "t"]), sink.getvalue().to_pybytes())
    db.open_table("t", namespace=space).add([{"id": 3}])
    dataset = lance.dataset(namespace_client=client, table_id=[*space, "t"])
    dataset.delete("id = 1")
    assert db.open_table("t", namespace=space).to_arrow()["id"].to_pylist() == [2, 3]


def test_secrets_of_the_namespace_stay_out_of_texts_and_files(
    rest: Rest, db: Connection, space: list[str]
):
    table = db.create_table("t", ROWS, namespace=space)
    table.add_columns({"twice": (double, ["id"])})
    table.backfill("twice")
    texts = [
        repr(db),
        repr(table),
        repr(table._ref),
        table._ref.snapshot_json(),
        str(table._ref.storage_options[0][0]),
    ]
    assert not [text for text in texts if SECRET in text]
    files = [path for path in rest.root.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert pickle.loads(pickle.dumps(table._ref)).open_latest().count_rows() == 6


def test_options_of_a_statement_cannot_name_code_or_mix_with_a_namespace(
    db: Connection, space: list[str], spark: SparkSession
):
    table = db.create_table("t", ROWS, namespace=space)
    option = f"storage.{NAMESPACE_OPTION}"
    forged = '{"implementation": "os.path", "properties": {}, "table_id": ["t"]}'
    for options in (
        {option: forged},
        {**table._ref.storage_settings, "storage.aws_endpoint": "http://127.0.0.1:1"},
    ):
        with pytest.raises(Exception, match=r"not registered|no options of a store"):
            spark.read.format("lance").options(**options).load(table._ref.uri).collect()


def test_operations_for_the_service_of_the_namespace_are_refused(rest: Rest):
    place = {"namespace_client_impl": "rest", "namespace_client_properties": rest.properties}
    for name in ("QueryTable", "CreateTable"):
        with pytest.raises(
            UnsupportedOperationError, match=f"{name}, which would run in the service"
        ):
            lance_spark.connect(**place, namespace_client_pushdown_operations=[name])  # type: ignore[arg-type]
    with pytest.raises(lance_spark.OptionError, match="QueryTable and CreateTable"):
        lance_spark.connect(**place, namespace_client_pushdown_operations=["DropTable"])  # type: ignore[arg-type]
    lance_spark.connect(**place, namespace_client_pushdown_operations=[]).list_namespaces()  # type: ignore[arg-type]


def test_errors_name_the_namespace(rest: Rest):
    with pytest.raises(UnsupportedOperationError, match="namespace_client_impl='rest'"):
        lance_spark.connect("db://remote")
    with pytest.raises(OptionError, match="uri"):
        lance_spark.connect(
            "folder", namespace_client_impl="rest", namespace_client_properties=rest.properties
        )
    nobody = lance_spark.connect(
        namespace_client_impl="no.such.Class", namespace_client_properties={"k": SECRET}
    )
    with pytest.raises(OptionError, match=r"needs the module 'no'") as error:
        nobody.table_names()
    assert SECRET not in str(error.value)


def test_every_commit_is_one_version_of_a_managed_table(
    managed: Rest, spark: SparkSession, space: list[str]
):
    from tests.lance_spark.namespaces.conftest import prepared

    db = prepared(managed.connect(spark), space)
    table = db.create_table("t", spark.range(6), namespace=space)
    table.add_columns({"twice": (double, ["id"])})
    table.backfill("twice")
    table.update("id = 0", values_sql={"id": "id + 10"})
    client = lance_namespace.connect("rest", managed.properties)
    table_id = [*space, "t"]
    assert client.describe_table(DescribeTableRequest(id=table_id)).managed_versioning
    request = lance_namespace.ListTableVersionsRequest(id=table_id)
    versions = sorted(version.version for version in client.list_table_versions(request).versions)
    assert versions == list(range(1, table.version + 1))
    trial = table.branches.create("trial")
    trial.add([{"id": 99}])
    assert (trial.count_rows(), table.count_rows()) == (7, 6)


def test_a_name_is_not_registered_if_its_table_is_unreadable(
    rest: Rest, db: Connection, space: list[str]
):
    versions = rest.root / "damaged.lance" / "_versions"
    versions.mkdir(parents=True)
    (versions / "1.manifest").write_bytes(b"no manifest")
    with pytest.raises(lance_spark.LanceSparkError):
        db.register_table("r", "damaged.lance", namespace=space)
    client = lance_namespace.connect("rest", rest.properties)
    request = lance_namespace.ListTablesRequest(id=space, include_declared=True)
    assert client.list_tables(request).tables == []
