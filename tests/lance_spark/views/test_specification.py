"""Documented behaviour of views and refreshes, sentence by sentence."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Job, RefreshJobResult, Table, chunker, udf, udtf

pytestmark = pytest.mark.sample(1, tests=5)


@pytest.fixture
def db(tmp_path: Path, spark: SparkSession) -> Connection:
    return lance_spark.connect(str(tmp_path / "db"), spark, progress=False)


def source_of(db: Connection, rows: int = 20, *, stable: bool = True) -> Table:
    data = pa.table({"id": range(rows), "text": [f"t{i}" for i in range(rows)]})
    return db.create_table("source", data, enable_stable_row_ids=stable)


def upper_logged(calls: Path) -> lance_spark.UDF:
    """Returns a UDF that logs its texts."""

    @udf
    def upper(text: str) -> str:
        with open(calls, "a", encoding="utf-8") as log:
            log.write(f"{text}\n")
        return text.upper()

    return upper


def calls_of(log: Path) -> list[str]:
    """Returns the calls since the last look."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(lines)


def rows_of_view(view: Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in view.to_arrow().to_pylist())


@pytest.mark.guarantee("V01", "V02", "V03", "V12", "V14")
def test_a_view_follows_its_source_and_calls_its_udf_for_what_changed(
    db: Connection, tmp_path: Path
) -> None:
    source, log = source_of(db), tmp_path / "calls"
    query = (
        source.search(None)
        .select({"twice": "id * 2", "upper": upper_logged(log)})
        .where("id >= 10")
    )
    view = query.create_materialized_view(db, "view")
    plan = view.plan_refresh()
    assert (plan.rows_added, plan.new_source_fragments, plan.previous_version, plan.has_work) == (
        10,
        1,
        None,
        True,
    )
    assert view.version == 1, "a plan changes nothing"
    assert view.refresh().rows_computed == len(calls_of(log)) == 10
    source.add([{"id": 20, "text": "t20"}])
    source.to_lance().update({"text": "'new'"}, where="id IN (3, 13)")
    source.to_lance().update({"id": "id + 100"}, where="id = 14")
    source.to_lance().delete("id = 15")
    plan = view.plan_refresh()
    assert (plan.rows_added, plan.rows_recomputed, plan.rows_removed) == (1, 2, 2)
    result = view.refresh()
    assert (result.rows_added, result.rows_recomputed, result.rows_removed) == (1, 2, 1)
    assert calls_of(log) == ["new", "t20"], "the text of the row whose id changed is the same"
    source_rows = (
        source.to_lance()
        .to_table(columns=["id", "text"], filter="id >= 10", with_row_id=True)
        .to_pylist()
    )
    assert rows_of_view(view) == sorted(
        (row["_rowid"], row["id"] * 2, row["text"].upper()) for row in source_rows
    )
    assert view.refresh(src_version=1).source_version == 1
    assert rows_of_view(view) == [(i, i * 2, f"T{i}") for i in range(10, 20)]
    assert calls_of(log) == ["t13", "t15"]
    assert not view.plan_refresh(1).has_work
    other_view = db.create_materialized_view("other", source.search(None).select(["text"]))
    assert other_view.refresh().source_version == source.version
    assert other_view.schema.names == ["__source_row_id", "text"]


@pytest.mark.guarantee("V04", "V05")
def test_fragments_of_a_view_have_at_most_so_many_rows(db: Connection) -> None:
    source = source_of(db)
    view = source.search(None).create_materialized_view(db, "view")
    assert inspect.signature(view.refresh).parameters["max_rows_per_fragment"].default is None
    view.refresh(max_rows_per_fragment=7)
    assert [f.metadata.physical_rows for f in view.to_lance().get_fragments()] == [7, 7, 6]
    source.add([{"id": i, "text": ""} for i in range(20, 40)])
    view.refresh()
    assert view.to_lance().get_fragments()[-1].metadata.physical_rows == 20


@pytest.mark.guarantee("V06", "V07", "V08", "V13")
def test_parameters_are_checked_by_name(db: Connection) -> None:
    @udf(num_gpus=1)
    def on_gpu(text: str) -> str:
        return text

    source = source_of(db)
    view = source.search(None).select({"out": on_gpu}).create_materialized_view(db, "view")
    for name in (
        "src_version",
        "max_rows_per_fragment",
        "concurrency",
        "intra_applier_concurrency",
    ):
        with pytest.raises(lance_spark.OptionError, match=name):
            view.refresh(**{name: 0})
    with pytest.raises(lance_spark.UnsupportedOperationError, match="where"):
        view.refresh(where="id > 1")
    with pytest.raises(lance_spark.ResourcesUnavailableError, match="asks for 1 GPU"):
        view.refresh(_admission_check=True)
    assert view.count_rows() == 0
    assert (
        view.refresh(
            concurrency=1, intra_applier_concurrency=2, _admission_check=False
        ).rows_computed
        == 20
    )


@pytest.mark.guarantee("V09")
def test_without_stable_row_ids_another_version_is_an_error_before_anything_is_done(
    db: Connection,
) -> None:
    source = source_of(db, stable=False)
    with pytest.warns(UserWarning, match="stable"):
        view = source.search(None).select(["id"]).create_materialized_view(db, "view")
    view.refresh()
    source.add([{"id": 20, "text": ""}])
    before = view.version
    with pytest.raises(RuntimeError, match="enable_stable_row_ids") as raised:
        view.refresh()
    assert isinstance(raised.value, lance_spark.StableRowIdsError)
    with pytest.raises(lance_spark.StableRowIdsError):
        view.plan_refresh()
    assert view.version == before
    assert view.refresh(src_version=1).status == "DONE"


@pytest.mark.guarantee("V10")
def test_refresh_async_returns_a_job(db: Connection) -> None:
    view = source_of(db).search(None).create_materialized_view(db, "view")
    job = view.refresh_async()
    assert isinstance(job, Job)
    result = job.result(timeout=60)
    assert isinstance(result, RefreshJobResult)
    assert (result.rows_added, job.status, job.progress()) == (20, "DONE", result)
    record = view.get_job(job.job_id)
    assert (record.job_type, record.status, record.rows_selected) == ("refresh", "DONE", 20)


@pytest.mark.long
@pytest.mark.guarantee("V11")
def test_python_waits_for_a_refresh_that_runs(tmp_path: Path) -> None:
    script = f"""
import lance_spark, pyarrow as pa
db = lance_spark.connect({str(tmp_path)!r}, progress=False)
source = db.create_table("source", pa.table({{"id": range(5)}}))
source.search(None).create_materialized_view(db, "view").refresh_async()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert lance.dataset(str(tmp_path / "view.lance")).count_rows() == 5


class Part(NamedTuple):
    chunk_index: int
    chunk_text: str


@pytest.mark.guarantee("V15", "V16", "V17")
def test_views_of_chunks_and_of_table_functions(db: Connection) -> None:
    source = db.create_table(
        "docs", [{"label": "a", "text": "x\n\ny"}, {"label": "b", "text": "z"}]
    )

    @chunker
    def split_document(text: str) -> Iterator[Part]:
        for i, part in enumerate(text.split("\n\n")):
            yield Part(chunk_index=i, chunk_text=part)

    @udtf(output_schema=pa.schema([pa.field("label", pa.string()), pa.field("count", pa.int64())]))
    def group_stats(source: Any) -> Iterator[pa.RecordBatch]:
        frame = source.to_pandas()
        yield pa.RecordBatch.from_pandas(frame.groupby("label").size().reset_index(name="count"))

    chunks = db.create_udtf_view("chunks", source=source.search(None), udtf=split_document)
    stats = db.create_udtf_view("summaries", source=source.search(None), udtf=group_stats)
    for texts, labels in (
        (["x", "y", "z"], [("a", 1), ("b", 1)]),
        (["w", "x", "y", "z"], [("a", 1), ("b", 2)]),
    ):
        assert (chunks.refresh().status, stats.refresh().status) == ("DONE", "DONE")
        assert sorted(chunks.to_arrow(["chunk_text"])["chunk_text"].to_pylist()) == texts
        assert sorted(tuple(row.values()) for row in stats.to_arrow().to_pylist()) == labels
        source.add([{"label": "b", "text": "w"}])
    indexes = chunks.to_arrow(["chunk_index", "__child_index"])
    assert indexes["chunk_index"] == indexes["__child_index"]
