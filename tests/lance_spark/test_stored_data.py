"""Tables of earlier commits open, resume and refresh, without a repeated call of a UDF."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyarrow import feather
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection
from tests.data import ARCHIVE, udfs_145927f

pytestmark = pytest.mark.sample(2, tests=3)

APPENDED = 5
"""Rows appended to `docs` after the computation of its columns."""

WRITTEN_WITH_PYTHON = (3, 11)
"""Stored code holds bytecode of this release of Python."""

runs_stored_code = pytest.mark.skipif(
    sys.version_info[:2] != WRITTEN_WITH_PYTHON,
    reason="bytecode of another Python release cannot run",
)

Calls = Callable[[], Counter[str]]


LOCATION = re.compile(rb"/[\w/.-]+/db/small\.lance")
"""Original location of the table with a branch. Manifests of a branch contain the full location."""


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Path]:
    """A folder with the tables of commit 145927f."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    table = tmp_path / "db" / "small.lance"
    manifests = {path: path.read_bytes() for path in (table / "tree").rglob("*.manifest")}
    (location,) = {place for content in manifests.values() for place in LOCATION.findall(content)}
    # A path of another length would change the lengths stored in the manifest.
    with TemporaryDirectory(dir="/tmp") as short:
        link = Path(short) / "small".ljust(len(location) - len(short) - 1, "_")
        link.symlink_to(table)
        for path, content in manifests.items():
            path.write_bytes(content.replace(location, str(link).encode()))
        yield tmp_path


@pytest.fixture
def db(stored: Path, jobs: Any) -> Connection:
    """A connection to these tables."""
    return lance_spark.connect(str(stored / "db"), jobs, progress=False)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Returns the number of calls per UDF since the previous look."""
    log = tmp_path / "calls"
    monkeypatch.setenv(udfs_145927f.CALLS, str(log))

    def take() -> Counter[str]:
        counts = Counter(log.read_text().split()) if log.exists() else Counter()
        log.write_text("")
        return counts

    return take


@pytest.mark.sample(1)
def test_stored_tables_have_their_rows_jobs_tags_branches_and_manifests(
    stored: Path, db: Connection
) -> None:
    expected = json.loads((stored / "expected.json").read_text())
    assert sorted(expected) == db.table_names()
    for name, facts in expected.items():
        table = db.open_table(name)
        assert table.to_arrow().equals(feather.read_table(stored / f"{name}.arrow")), name
        assert table.version == facts["version"]
        jobs = sorted([job.job_type, list(job.columns), job.status] for job in table.list_jobs())
        assert jobs == facts["jobs"], name
        assert len(list(table.versions)) == facts["version"], name
    assert list(db.list_manifests()) == ["packaging"]
    assert list(db.open_table("docs").tags.list()) == ["release"]
    assert db.open_table("small", branch="dev").count_rows() == 55
    skipped = [error for error in db.open_table("docs").get_errors() if error.outcome == "skipped"]
    assert [(error.error_type, error.error_message) for error in skipped] == [
        ("ValueError", "seven is skipped")
    ]


@runs_stored_code
@pytest.mark.parametrize(
    ("column", "udf", "rows"),
    [
        ("letters", "letters", APPENDED),
        ("loud", "loud", 20 + APPENDED),
        ("vector", "vector", APPENDED),
        ("first", "halves", APPENDED),
        ("odd_only", "odd_only", APPENDED + 1),  # a second call for the skipped row
        ("width", "width", APPENDED),
        ("rounded", "rounded", APPENDED),
        ("scale", "scale", APPENDED),
        ("prefixed", "prefixed", APPENDED),
        (
            "price_with_tax",
            "price_with_tax",
            10 + APPENDED,
        ),  # checkpoints hold ten rows of the failed fragment
    ],
)
def test_a_backfill_of_a_stored_column_calls_its_udf_for_new_and_unfinished_rows_alone(
    db: Connection, calls: Calls, column: str, udf: str, rows: int
) -> None:
    docs = db.open_table("docs")
    before = docs.to_arrow(columns=["id", column], filter="id < 40")
    docs.backfill(column)
    assert calls() == {udf: rows}
    assert docs.to_arrow(columns=["id", column], filter="id < 40").equals(before)
    version = docs.version
    docs.backfill(column)
    assert (set(calls()) - {"odd_only"}, docs.version) == (
        set(),
        version,
    )  # every backfill calls the skipped row


@runs_stored_code
def test_values_of_a_compacted_stored_table_are_known_and_its_branch_is_backfilled(
    db: Connection, calls: Calls
) -> None:
    small = db.open_table("small")
    assert small.backfill("odd_only").rows_computed == 0
    small.backfill("letters")
    small.backfill("price_with_tax")
    assert calls() == {"odd_only": 1, "letters": 20, "price_with_tax": 30}
    db.open_table("small", branch="dev").backfill("letters")
    assert calls() == {"letters": 25}


@runs_stored_code
@pytest.mark.parametrize(
    ("name", "rows"),
    [("letters", 1), ("loud", 1), ("scale", 0), ("odd_only", 1), ("price_with_tax", 0)],
)
def test_registering_an_unchanged_udf_again_keeps_the_values_of_a_stored_column(
    db: Connection, calls: Calls, name: str, rows: int
) -> None:
    """The stale row of `letters` and `loud`, and the skipped row of `odd_only`, are called."""
    docs = db.open_table("docs")
    docs.backfill(name)
    calls()
    docs.alter_columns({"path": name, "udf": getattr(udfs_145927f, name)})
    docs.backfill(name)
    assert calls() == Counter({name: rows})


@runs_stored_code
def test_a_stored_column_knows_which_of_its_values_are_stale(db: Connection, calls: Calls) -> None:
    docs = db.open_table("docs")
    assert docs.plan_backfill("letters").rows_stale == 1
    docs.backfill("letters", stale=True)
    assert calls() == {"letters": 1 + APPENDED}


@pytest.mark.sample(1)
@runs_stored_code
@pytest.mark.spark
def test_stored_views_refresh_what_changed_in_their_source(
    db: Connection, spark: SparkSession
) -> None:
    even = db.open_table("even_docs").refresh()
    assert (even.rows_added, even.rows_removed, even.rows_computed) == (3, 0, 3)
    cheap = db.open_table("cheap_docs").refresh()
    assert (cheap.rows_added, cheap.rows_removed) == (1, 2)
    words = db.open_table("words")
    chunked = words.refresh()
    assert (chunked.rows_chunked, chunked.rows_added, chunked.rows_removed) == (6, 24, 8)
    assert words.backfill("letters").rows_computed == 24
    lengths = db.open_table("lengths")
    lengths.refresh()
    documents: int = sum(lengths.to_arrow()["documents"].to_pylist())
    assert documents == db.open_table("docs").count_rows() == 64
    again = [db.open_table(name).refresh() for name in ("even_docs", "cheap_docs", "words")]
    assert [(result.rows_added, result.rows_removed, result.rows_computed) for result in again] == [
        (0, 0, 0)
    ] * 3


@pytest.mark.spark
def test_spark_reads_stored_tables(stored: Path, spark: SparkSession) -> None:
    frame = spark.read.format("lance").load(str(stored / "db" / "docs.lance"))
    rows = frame.where("letters > 16").groupBy().sum("id").first()
    letters = feather.read_table(stored / "docs.arrow", columns=["id", "letters"]).to_pylist()
    assert rows == (sum(row["id"] for row in letters if (row["letters"] or 0) > 16),)
