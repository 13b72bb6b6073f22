"""Refreshes interrupted between two of their steps, or overtaken by another refresh."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import CommitConflictError, Connection, Table
from lance_spark.views.refresh import RefreshJob
from lance_spark.views.state import CONFIG_KEY
from udf_runtime import udf


@pytest.fixture
def source(tmp_path: Path, spark: SparkSession) -> Table:
    db = lance_spark.connect(str(tmp_path / "db"), spark, progress=False)
    return db.create_table("source", pa.table({"id": range(10)}))


@pytest.fixture
def db(tmp_path: Path, spark: SparkSession) -> Connection:
    return lance_spark.connect(str(tmp_path / "db"), spark, progress=False)


def ids(view: Table) -> list[object]:
    return sorted(view.to_arrow().column("id").to_pylist())


@pytest.mark.parametrize(
    "error", [CommitConflictError("lost", uri="view"), OSError("the store is gone")]
)
def test_an_error_after_the_commit_of_rows_loses_nothing_and_doubles_nothing(
    db: Connection, source: Table, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    view = source.search(None).create_materialized_view(db, "view")
    note = RefreshJob._note
    errors = [error]

    def fail_once(job: RefreshJob, *arguments: object) -> None:
        if errors:
            raise errors.pop()
        note(job, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RefreshJob, "_note", fail_once)
    if isinstance(error, CommitConflictError):
        assert view.refresh().rows_added == 10, "it looks again, and finds its own commit"
    else:
        with pytest.raises(lance_spark.BackfillIncompleteError, match="the store is gone"):
            view.refresh()
        assert CONFIG_KEY not in view.to_lance().config()
    assert ids(view) == list(range(10))
    source.add([{"id": 10}])
    assert view.refresh().rows_added == 1
    assert ids(view) == list(range(11))
    assert CONFIG_KEY in view.to_lance().config()


def test_a_refresh_that_another_one_has_overtaken_does_not_go_back(
    db: Connection, source: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = source.search(None).create_materialized_view(db, "view")
    replace_rows = RefreshJob._replace_rows
    overtaken = []

    def wait_for_another(job: RefreshJob, *start: object) -> None:
        if not overtaken:
            overtaken.append(True)
            source.add([{"id": 10}])
            view.refresh()
        replace_rows(job, *start)  # type: ignore[arg-type]

    monkeypatch.setattr(RefreshJob, "_replace_rows", wait_for_another)
    assert view.refresh().status == "DONE"
    assert ids(view) == list(range(11))
    assert not view.plan_refresh().has_work
    view.refresh(src_version=1)
    assert ids(view) == list(range(10)), "a version that is named is shown, also an older one"


@pytest.mark.long
def test_values_are_not_computed_from_a_version_that_the_rows_may_not_show(
    db: Connection, source: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    @udf(data_type=pa.int64())
    def tenfold(n: int) -> int:
        return 10 * n

    source.add_columns({"n": "id"})
    view = (
        source.search(None)
        .select({"id": "id", "tens": tenfold})
        .create_materialized_view(db, "view")
    )
    view.refresh()
    source.to_lance().update({"n": "100"}, where="id = 3")

    def die(job: RefreshJob, *arguments: object) -> None:
        raise OSError("the driver is gone")

    with monkeypatch.context() as patched:
        patched.setattr(RefreshJob, "_note", die)
        with pytest.raises(lance_spark.BackfillIncompleteError, match="the driver is gone"):
            view.refresh()
    assert view.count_rows("tens IS NULL") == 1
    view.to_lance().update_config({"another": "version"})
    view.to_lance().cleanup_old_versions(older_than=timedelta(0), delete_unverified=False)
    with pytest.raises(lance_spark.ViewSourceError, match="Refresh the view"):
        view.backfill("tens")
    view.refresh()
    assert sorted(view.to_arrow(["tens"])["tens"].to_pylist()) == [
        0,
        10,
        20,
        40,
        50,
        60,
        70,
        80,
        90,
        1000,
    ]
