"""Documented examples for views: UDFs, chunkers and table functions with their own packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest

from lance_spark import (
    Connection,
    EnvironmentBuildError,
    Manifest,
    Table,
    UdfDefinitionError,
    chunker,
    udf,
    udtf,
)
from tests.lance_spark.environments.conftest import VERSIONS, packaging
from udf_runtime.execute import TableSource

pytestmark = pytest.mark.spark

OLD, NEW = VERSIONS


@pytest.mark.long
def test_a_chunker_runs_in_its_environment(db: Connection, table: Table):
    class Chunk(NamedTuple):
        chunk_index: int
        chunk_text: str
        package_version: str

    @chunker(manifest=packaging(OLD))
    def split_document(text: str) -> Iterator[Chunk]:
        import packaging

        for i, part in enumerate(text.split("\n\n")):
            yield Chunk(chunk_index=i, chunk_text=part, package_version=packaging.__version__)

    view = db.create_udtf_view("chunks", source=table.search(None), udtf=split_document)
    result = view.refresh()
    assert result.rows_added == 120
    assert view.count_rows(f"package_version = '{OLD}'") == 120
    assert set(view.to_arrow(["chunk_text"])["chunk_text"].to_pylist()) == {
        text for i in range(60) for text in (f"word {i}", f"of {i}")
    }
    table.to_lance().update({"text": "'a\n\nb\n\nc'"}, where="id = 7")
    assert view.refresh().rows_added == 3


@pytest.mark.long
def test_a_table_function_runs_in_its_environment(db: Connection, table: Table):
    manifest = Manifest.create_pip("pandas").pip(["pandas==2.2.3"]).build()

    @udtf(
        output_schema=pa.schema([pa.field("label", pa.string()), pa.field("count", pa.int64())]),
        manifest=manifest,
    )
    def group_stats(source: TableSource) -> Iterator[pa.RecordBatch]:
        import pandas as pd

        df = source.to_pandas()
        if source.count_rows() != len(df) or source.schema.names != ["id", "text"]:
            raise ValueError(f"{source.count_rows()} rows of {source.schema.names}")
        agg = df.assign(label=[f"{pd.__version__} {i % 3}" for i in df["id"]])
        agg = agg.groupby("label").size().reset_index(name="count")
        yield pa.RecordBatch.from_pandas(agg)

    view = db.create_udtf_view("summaries", source=table.search(None), udtf=group_stats)
    view.refresh()
    assert sorted(view.to_arrow(["label", "count"]).to_pylist(), key=str) == [
        {"label": f"2.2.3 {i}", "count": 20} for i in range(3)
    ]


def test_the_views_manifest_is_for_a_function_without_one(db: Connection, table: Table):
    @udtf(output_schema=pa.schema([pa.field("version", pa.string())]))
    def version(source: TableSource) -> Iterator[pa.RecordBatch]:
        import packaging

        yield pa.record_batch([pa.array([packaging.__version__])], names=["version"])

    view = db.create_udtf_view(
        "v", source=table.search(None), udtf=version, manifest=packaging(OLD)
    )
    view.refresh()
    assert view.to_arrow(["version"]).to_pylist() == [{"version": OLD}]
    manifest = view.get_manifest()
    assert manifest is not None and manifest.checksum == packaging(OLD).checksum


@pytest.mark.long
def test_columns_of_a_materialized_view_run_in_their_environments(db: Connection, table: Table):
    def versioned(manifest: Manifest):
        @udf(data_type=pa.string(), manifest=manifest)
        def version(id: int) -> str:
            import packaging

            return str(packaging.__version__)

        return version

    query = table.search(None).select(
        {"id": "id", "a": versioned(packaging(OLD)), "b": versioned(packaging(NEW))}
    )
    view = db.create_materialized_view("v", query)
    view.refresh()
    assert view.count_rows(f"a = '{OLD}' AND b = '{NEW}'") == 60


@pytest.mark.long
def test_a_job_asks_once_for_the_value_of_a_variable(db: Connection, table: Table):
    requests: list[str] = []

    def token() -> str:
        requests.append(f"token {len(requests)}")
        return requests[-1]

    manifest = (
        Manifest.create_pip("keys").pip([f"packaging=={OLD}"]).env_vars({"TOKEN": token}).build()
    )

    @udf(data_type=pa.string(), input_columns=["id"], manifest=manifest)
    def key(id: int) -> str:
        return os.environ["TOKEN"]

    @chunker(output_schema=pa.schema({"key": pa.string()}), manifest=manifest)
    def chunks(text: str) -> list[tuple[str]]:
        return [(os.environ["TOKEN"],)]

    @udtf(output_schema=pa.schema({"key": pa.string()}), manifest=manifest)
    def rows(source: TableSource) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"key": [os.environ["TOKEN"]]})

    table.add_columns({"key": key})
    columns = db.create_materialized_view(
        "columns", table.search(None).select({"id": "id", "key": key, "again": key})
    )
    udtf_views = [
        db.create_udtf_view(function.name, source=table.search(None), udtf=function)
        for function in (chunks, rows)
    ]
    requests.clear()
    table.backfill("key")
    for view in (columns, *udtf_views):
        view.refresh()
    assert len(requests) == 4
    keys = [
        set(relation.to_arrow(["key"])["key"].to_pylist())
        for relation in (table, columns, *udtf_views)
    ]
    assert keys == [{request} for request in requests] and columns.count_rows("again = key") == 60


def test_a_view_whose_environment_cannot_be_made_stays_as_it_is(db: Connection, table: Table):
    broken = Manifest.create_pip("broken").pip(["no-such-package-of-lance-spark==2.0"]).build()

    @chunker(output_schema=pa.schema({"part": pa.string()}), manifest=broken)
    def split(text: str) -> list[tuple[str]]:
        return [(text,)]

    @udtf(output_schema=pa.schema({"part": pa.string()}), manifest=broken)
    def whole(source: TableSource) -> Iterator[pa.RecordBatch]:
        yield from ()

    for name, function in (("chunks", split), ("rows", whole)):
        view = db.create_udtf_view(name, source=table.search(None), udtf=function)
        version = view.version
        with pytest.raises(EnvironmentBuildError, match="no-such-package-of-lance-spark"):
            view.refresh()
        assert view.version == version and view.list_jobs()[0].status == "FAILED"


def test_what_is_missing_is_found_before_a_refresh_begins(db: Connection, table: Table):
    manifest = (
        Manifest.create_pip("keys")
        .pip([f"packaging=={OLD}"])
        .add_env_var("NO_SUCH_KEY_OF_LANCE_SPARK")
        .build()
    )

    @udf(data_type=pa.int64(), manifest=manifest)
    def same(id: int) -> int:
        return id

    view = db.create_materialized_view("v", table.search(None).select({"id": "id", "a": same}))
    with pytest.raises(UdfDefinitionError, match="NO_SUCH_KEY_OF_LANCE_SPARK has no value"):
        view.refresh()
    assert view.list_jobs() == [] and view.count_rows() == 0
