"""Writes `stored_145927f.tar.gz`: a folder of tables with all data that commit 145927f stores in addition to their
rows.

Run in a checkout of that commit, with this file and `udfs_145927f.py` in its `tests/data`: `python -m
tests.data.write_145927f FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import feather
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Manifest, Table
from tests.data import udfs_145927f

ROWS_PER_FRAGMENT = 20
FINISHED = (
    "letters",
    "vector",
    "first",
    "odd_only",
    "width",
    "rounded",
    "scale",
    "prefixed",
    "count_words",
)
CHECKPOINTS: dict[str, Any] = {
    "task_size": 20,
    "min_checkpoint_size": 5,
    "checkpoint_size": 5,
    "batch_checkpoint_flush_interval_seconds": 0,
}


def rows_of(first: int, count: int) -> pa.Table:
    """Returns `count` rows of documents with ids from `first`."""
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"word of document {i}" for i in ids],
            "price": [i * 1.25 for i in ids],
            "tags": pa.array(
                [[f"t{i % 3}", None] if i % 5 else None for i in ids], pa.list_(pa.string())
            ),
        }
    )


def write_documents(db: Connection) -> Table:
    """Writes a table with columns of all kinds: finished, unfinished, failed and stale."""
    docs = db.create_table("docs", rows_of(0, ROWS_PER_FRAGMENT))
    for first in (20, 40):
        docs.add(rows_of(first, ROWS_PER_FRAGMENT))
    docs.add_columns(
        {
            "letters": udfs_145927f.letters,
            "vector": udfs_145927f.vector,
            "odd_only": udfs_145927f.odd_only,
            "scale": udfs_145927f.scale,
            "prefixed": udfs_145927f.prefixed_with("p-"),
            "count_words": (udfs_145927f.spark_udf(), ["text"]),
        }
    )
    docs.add_columns(udfs_145927f.halves)
    docs.add_columns({"rounded": udfs_145927f.rounded})
    docs.add_columns({"width": udfs_145927f.width})
    docs.add_columns({"loud": udfs_145927f.loud, "price_with_tax": udfs_145927f.price_with_tax})
    for column in FINISHED:
        docs.backfill(column)
    docs.backfill("loud", num_frags=2)
    try:
        docs.backfill("price_with_tax", **CHECKPOINTS)
    except lance_spark.BackfillIncompleteError as error:
        status = error.result.status
    assert status == "PARTIAL"
    loaded = pa.table(
        {"id": pa.array(range(0, 60, 2), pa.int64()), "score": [i / 2 for i in range(0, 60, 2)]}
    )
    docs.load_columns(loaded, pk="id", columns=["score"])
    docs.tags.create("release", docs.version)
    docs.create_scalar_index("id")
    return docs


def write_compacted(db: Connection) -> None:
    """Writes a table whose values and records a compaction has moved, with failed and unfinished rows before the
    compaction.
    """
    small = db.create_table("small", rows_of(0, 10))
    for first in range(10, 50, 10):
        small.add(rows_of(first, 10))
    small.add_columns(
        {
            "letters": udfs_145927f.letters,
            "odd_only": udfs_145927f.odd_only,
            "price_with_tax": udfs_145927f.price_with_tax,
        }
    )
    small.backfill("letters", num_frags=3)
    small.backfill("odd_only")
    small.backfill("price_with_tax", num_frags=2)
    small.compact_files()
    small.branches.create("dev")
    dev = db.open_table("small", branch="dev")
    dev.add(rows_of(50, 5))


def write_views(db: Connection, docs: Table) -> None:
    """Writes views of each kind after a refresh, with later changes of the source."""
    even = (
        docs.search(None)
        .select({"id": "id", "cents": "price * 100", "shout": udfs_145927f.shout})
        .where("id % 2 = 0")
    )
    even.create_materialized_view(db, "even_docs").refresh()
    text = "SELECT id, upper(text) AS loud_text, price * 1.19BD AS gross FROM docs WHERE price < 60"
    db.create_materialized_view("cheap_docs", text).refresh()
    chunks = docs.search(None).select(["id"]).where("id < 1000")
    view = db.create_udtf_view("words", source=chunks, udtf=udfs_145927f.words)
    view.refresh()
    view.add_columns({"letters": (udfs_145927f.letters, ["word"])})
    view.backfill("letters")
    stats = db.create_udtf_view(
        "lengths", source=docs.search(None).select(["text"]), udtf=udfs_145927f.lengths
    )
    stats.refresh()


def change_documents(docs: Table) -> None:
    """Appends five rows, deletes one, and changes an input of one."""
    docs.add(rows_of(60, 5))
    docs.delete("id = 11")
    docs.update(where="id = 3", values={"text": "another text of three"})


def expectation(db: Connection) -> dict[str, Any]:
    """Returns the tables as any later reader must see them."""
    tables = {}
    for name in db.table_names():
        table = db.open_table(name)
        tables[name] = {
            "version": table.version,
            "rows": table.to_arrow().num_rows,
            "jobs": sorted(
                (job.job_type, list(job.columns), job.status) for job in table.list_jobs()
            ),
        }
    return tables


def main(folder: str) -> None:
    """Writes the tables into a new folder, and packs them."""
    os.environ[udfs_145927f.OUTAGE] = "1"
    home = Path(folder)
    spark = (
        lance_spark.configure(SparkSession.builder.master("local[2]"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    db = lance_spark.connect(str(home / "db"), spark, progress=False)
    docs = write_documents(db)
    write_compacted(db)
    write_views(db, docs)
    change_documents(docs)
    manifest = Manifest.create_pip("packaging").pip(["packaging==23.2"]).build()
    db.define_manifest("packaging", manifest)
    for name in db.table_names():
        feather.write_feather(
            db.open_table(name).to_arrow(), home / f"{name}.arrow", compression="uncompressed"
        )
    (home / "expected.json").write_text(json.dumps(expectation(db), indent=1))
    spark.stop()
    with tarfile.open(Path(__file__).parent / "stored_145927f.tar.gz", "w:gz") as archive:
        archive.add(home, arcname=".")


if __name__ == "__main__":
    main(sys.argv[1])
