"""Drives the append writer without Spark: the same objects and pickle round trips, in one process."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import lance
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_spark.dataset import DatasetRef
from lance_spark.options.io_options import WriteOptions
from lance_spark.write.append_writer import LanceAppendWriter

ROWS = StructType([StructField("id", LongType()), StructField("s", StringType())])
STORES = {"local": "", "object store": "file-object-store://"}
"""Lance treats a location of the second scheme as an object store, although its objects are local files."""

prefix = ""


def uri_of(path: Path | str) -> str:
    """Returns the location of a table for the jobs of this test; checks always read local files."""
    return f"{prefix}{path}"


def plan(
    path: Path | str, *, overwrite: bool = False, schema: StructType = ROWS, **options: str
) -> LanceAppendWriter:
    parsed = WriteOptions.parse({"path": uri_of(path), **options})
    planned = LanceAppendWriter.plan(
        DatasetRef.at(uri_of(path)), schema, parsed, overwrite=overwrite
    )
    planned.staging.open_job()
    # Spark sends a pickled copy to the tasks and to the commit process.
    copy = pickle.loads(pickle.dumps(planned))
    assert isinstance(copy, LanceAppendWriter)
    return copy


def with_markers(job: LanceAppendWriter) -> LanceAppendWriter:
    """Returns a job whose attempts have markers, as in a table with many files."""
    return dataclasses.replace(job, staging=dataclasses.replace(job.staging, has_markers=True))


def batches(*ids: int) -> Iterator[pa.RecordBatch]:
    if ids:
        yield pa.record_batch(
            {"id": pa.array(ids, pa.int64()), "s": pa.array([f"row {i}" for i in ids])}
        )


def write(
    path: Path | str, *ids: int, overwrite: bool = False, **options: str
) -> LanceAppendWriter:
    job = plan(path, overwrite=overwrite, **options)
    answer = job.write(batches(*ids))
    job.commit([job.read_answer(json.loads(json.dumps(answer.to_json())))])
    return job


def ids_in(path: Path | str, version: int | None = None) -> list[int]:
    return sorted(lance.dataset(str(path), version=version).to_table()["id"].to_pylist())


def files_in(path: Path | str) -> set[str]:
    return {str(p.relative_to(path)) for p in Path(path).rglob("*") if p.is_file()}


def unused_files(path: Path | str) -> set[str]:
    """Files outside all versions: data files, sidecars of blobs, and everything in the staging folder."""
    dataset = lance.dataset(str(path))
    versions = [lance.dataset(str(path), version=v["version"]) for v in dataset.versions()]
    stems = {
        f.path.removesuffix(".lance")
        for v in versions
        for g in v.get_fragments()
        for f in g.data_files()
    }
    return {
        name
        for name in files_in(path)
        if name.startswith("_lance_spark")
        or (name.startswith("data/") and name.split("/")[1].removesuffix(".lance") not in stems)
    }


def child_environment() -> dict[str, str]:
    """Returns the environment of a process that imports this project."""
    root = str(Path(__file__).parents[3])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }


def sleeping(sleep: Callable[[float], None]) -> SimpleNamespace:
    """Returns a replacement of the module `time` of a single module: other threads of the process sleep as before."""
    return SimpleNamespace(**{**vars(time), "sleep": sleep})
