"""A connection whose jobs share a folder of environments, with two conflicting versions of a real package."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection, Manifest, Table

VERSIONS = ("23.2", "24.2")


@pytest.fixture(scope="session")
def environments(spark: SparkSession) -> Path:
    """The folder of the session's environments."""
    folder = spark.conf.get("spark.lance.environments.dir")
    assert folder is not None
    return Path(folder)


@pytest.fixture
def db(tmp_path: Path, spark: SparkSession) -> Connection:
    return lance_spark.connect(str(tmp_path / "db"), spark, progress=False)


@pytest.fixture
def table(db: Connection) -> Table:
    """Sixty rows in three fragments."""
    words = db.create_table("words", rows(0))
    words.add(rows(20))
    words.add(rows(40))
    return words


def rows(start: int) -> pa.Table:
    ids = range(start, start + 20)
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"word {i}\n\nof {i}" for i in ids]})


def packaging(version: str, **more: str) -> Manifest:
    return Manifest.create_pip(f"packaging {version}").pip([f"packaging=={version}"]).build()


def built(environments: Path) -> set[str]:
    return {path.parent.name for path in environments.glob("*/environment.json")}


def holding(root: Path, secret: str) -> list[Path]:
    """Returns the files below a folder that contain a text, also in their names."""
    matches = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                if secret in name or secret.encode() in path.read_bytes():
                    matches.append(path)
            except OSError:  # a socket, or gone
                continue
    return matches
