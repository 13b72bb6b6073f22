"""Artifacts of UDFs in jobs: copied once per machine, read in `setup`, and part of the UDF's version."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import lance_spark
from lance_spark import ArtifactError, Connection, Table, UdfDefinitionError, chunker, udf, udtf
from udf_runtime import UDF

pytestmark = pytest.mark.sample(1, tests=2)


class Adder:
    """Adds the number in a file."""

    def __init__(self, log: str) -> None:
        self.log, self.number = log, 0

    def setup(self, artifacts: Mapping[str, str]) -> None:
        self.number = int(Path(artifacts["weights"], "number").read_text())
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {artifacts['weights']}\n")

    def __call__(self, id: int) -> int:
        return id + self.number


def adding(weights: Path, log: Path, version: str | None = None) -> UDF:
    adder = udf(
        data_type=pa.int64(), artifacts={"weights": str(weights)}, task_size=10, version=version
    )(Adder)(str(log))
    assert isinstance(adder, UDF)
    return adder


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "number").write_text("100")
    return folder


@pytest.mark.spark
def test_tasks_and_jobs_of_a_machine_share_one_copy(
    table: Table, weights: Path, tmp_path: Path, environments: Path
):
    table.add_columns({"v": adding(weights, tmp_path / "log")})
    assert table.backfill("v").rows_computed == 60
    loads = (tmp_path / "log").read_text().splitlines()
    assert 1 <= len(loads) <= 2  # a process per slot
    weights.rename(tmp_path / "away")  # the second job has the copy
    table.add(pa.table({"id": [60, 61], "text": ["", ""]}))
    assert table.backfill("v").rows_computed == 2
    assert table.count_rows("v = id + 100") == 62
    assert (tmp_path / "log").read_text().splitlines() == loads  # and the models
    (path,) = {line.split()[1] for line in loads}
    assert Path(path).parent.parent == environments and Path(path).parent.name.startswith(
        "artifact-"
    )


@pytest.mark.long
@pytest.mark.spark
def test_views_of_chunkers_and_table_functions_have_artifacts(
    table: Table, db: Connection, weights: Path
):
    class Chunk(NamedTuple):
        number: int

    @chunker(artifacts={"weights": str(weights)})
    class Numbers:
        def setup(self, artifacts: Mapping[str, str]) -> None:
            self.number = int(Path(artifacts["weights"], "number").read_text())

        def __call__(self, id: int) -> Iterator[Chunk]:
            yield Chunk(self.number + id)

    @udtf(artifacts={"weights": str(weights)}, output_schema=pa.schema({"number": pa.int64()}))
    class Number:
        def setup(self, artifacts: Mapping[str, str]) -> None:
            self.number = int(Path(artifacts["weights"], "number").read_text())

        def __call__(self, source: Any) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"number": [self.number + source.count_rows()]})

    chunks = db.create_udtf_view("chunks", table.search(), Numbers())
    number = db.create_udtf_view("number", table.search(), Number())
    assert chunks.refresh().rows_added == 60 and number.refresh().rows_added == 1
    assert sorted(chunks.to_arrow()["number"].to_pylist()) == list(range(100, 160))
    assert number.to_arrow()["number"].to_pylist() == [160]
    with pytest.raises(lance_spark.LanceSparkError, match="Spark copies no artifacts"):
        lance_spark.table_function(Number())


@pytest.fixture
def inline(tmp_path: Path, jobs: Any, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setenv("HOME", str(tmp_path))  # copies lie in ~/.cache
    return lance_spark.connect(str(tmp_path / "db"), jobs, progress=False).create_table(
        "t", [{"id": 1}, {"id": 2}]
    )


def values(table: Table) -> list[object]:
    return table.to_arrow()["v"].to_pylist()


@pytest.mark.parametrize("version", [None, pytest.param("1", marks=pytest.mark.long)])
def test_another_content_is_another_version_and_computes_all_rows(
    inline: Table, weights: Path, tmp_path: Path, version: str | None
):
    function = adding(weights, tmp_path / "log", version)
    inline.add_columns({"v": function})
    assert inline.backfill("v").rows_computed == 2 and values(inline) == [101, 102]
    inline.alter_columns({"path": "v", "udf": function})
    assert inline.backfill("v", stale=True).rows_computed == 0
    (weights / "number").write_text("200")
    inline.alter_columns({"path": "v", "udf": function})
    assert inline.backfill("v", stale=True).rows_computed == 2 and values(inline) == [201, 202]
    assert (
        inline.backfill(
            "v", udf=adding(weights, tmp_path / "log", version), stale=True
        ).rows_computed
        == 0
    )


def test_a_content_that_changed_after_the_registration_ends_the_job_by_the_name_of_the_file(
    inline: Table, weights: Path, tmp_path: Path
):
    inline.add_columns({"v": adding(weights, tmp_path / "log")})
    (weights / "number").write_text("300")
    with pytest.raises(
        ArtifactError, match=r"'weights' cannot be copied: the file 'number' has another content"
    ) as caught:
        inline.backfill("v")
    assert caught.value.location == str(weights) and values(inline) == [None, None]


def test_a_location_without_files_is_an_error_before_anything_changes(
    inline: Table, tmp_path: Path
):
    with pytest.raises(
        UdfDefinitionError,
        match=r"'weights' cannot be listed: there is neither a file nor a folder",
    ):
        inline.add_columns({"v": adding(tmp_path / "nothing", tmp_path / "log")})
    assert inline.to_lance().schema.names == ["id"]
