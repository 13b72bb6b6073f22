"""Job records, markers and links that any writer of the table may forge: cleanup deletes only this package's names."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.columns.binding import binding_of
from lance_spark.dataset import DatasetRef
from lance_spark.errors import DamagedFileError, OptionError, TableUnwritableError
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.tables import JOBS
from lance_spark.staging.orphans import remove_orphans
from lance_spark.upkeep.cleanup import CleanupTask, result_of
from tests.support.planted import picture
from udf_runtime import udf

OLD = datetime(2020, 1, 1, tzinfo=UTC)
JOB, ATTEMPT = "0" * 32 + "5e000000", "1" * 32 + "5e000000"
DAY = timedelta(days=1)
FORGED = (
    "../../../../victim",
    "../../victim",
    "",
    ".",
    "..",
    "/",
    "staging",
    JOB.upper(),
    JOB[:-1],
    JOB + "/..",
    f"{JOB}\n",
)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    lance.write_dataset(pa.table({"id": [1, 2, 3]}), tmp_path / "tables/t.lance")
    for name in (
        "a.txt",
        "deep/b.txt",
        "deep/.c.tmp",
        f"{ATTEMPT}/attempt",
        "open",
        "heartbeat",
        "1/2/3-4.1.j.rows",
    ):
        (tmp_path / "victim" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "victim" / name).write_text("of the victim")
    (tmp_path / "victim/heartbeat").write_text('{"at": 0}')
    return str(tmp_path / "tables/t.lance")


def forge_job(uri: str, staging_id: str, key: str = "k", status: str = "RUNNING") -> None:
    row: dict[str, Any] = dict.fromkeys(JOBS.schema.names)
    row |= {name: 0 for name in JOBS.schema.names if name.startswith(("rows_", "fragments_"))}
    row |= {
        "job_id": f"forged {staging_id}",
        "job_type": "backfill",
        "status": status,
        "columns": ["f"],
        "key": key,
    }
    row |= {
        "udf_name": "u",
        "udf_version": "1",
        "input_columns": ["id"],
        "read_version": 1,
        "staging_id": staging_id,
    }
    row |= {
        "launched_at": OLD,
        "updated_at": OLD,
        "launched_by": "me",
        "versions": [],
        "retries": 0,
        "seconds": "{}",
    }
    row["process"] = json.dumps({"host": "another", "pid": 1, "started": "0"})
    rows = pa.Table.from_pylist([row], schema=JOBS.schema)
    lance.write_dataset(rows, f"{uri}/_lance_spark/jobs.lance", mode="append")


def rest(root: Path) -> dict[str, object]:
    """Returns everything except the growing history."""
    return {path: content for path, content in picture(root).items() if "jobs.lance" not in path}


@pytest.mark.filterwarnings("ignore::lance_spark.DamagedRecordWarning")
def test_no_forged_id_of_a_job_leads_to_a_file(uri: str, tmp_path: Path):
    (Path(uri) / "_lance_spark/jobs/alive").mkdir(parents=True)
    (Path(uri) / "_lance_spark/jobs/alive/heartbeat").write_text("of a running job")
    for identifier in FORGED:
        forge_job(uri, identifier)
    before = rest(tmp_path)
    lance_spark.cleanup(uri, older_than=DAY)
    for identifier in FORGED:
        JobHistory(DatasetRef.at(uri)).clear(identifier)
    assert rest(tmp_path) == before


@pytest.mark.parametrize(
    "link",
    [
        "_lance_spark",
        "_lance_spark/staging",
        f"_lance_spark/staging/{JOB}",
        f"_lance_spark/staging/{JOB}/{ATTEMPT}",
        "_lance_spark/checkpoints",
        "_lance_spark/checkpoints/1",
        "_lance_spark/jobs",
        f"_lance_spark/jobs/{JOB}",
        "data",
        f"data/{ATTEMPT}-0",
    ],
)
def test_no_link_in_a_table_leads_a_cleanup_out_of_it(link: str, uri: str, tmp_path: Path):
    victim = tmp_path / "victim"
    (victim / JOB / ATTEMPT).mkdir(parents=True)
    (victim / JOB / "open").write_text("of the victim")
    (victim / f"{ATTEMPT}-0.lance").write_text("of the victim")
    place = Path(uri, link)
    if link == "data":
        place.rename(tmp_path / "tables/elsewhere")
        victim = tmp_path / "tables/elsewhere"
        (victim / f"{ATTEMPT}-0.lance").write_text("of the victim")
    if link != "_lance_spark":
        forge_job(uri, JOB, status="RUNNING")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim)
    if "data" in link:
        marker = Path(uri, "_lance_spark/staging", JOB, ATTEMPT, "attempt")
        marker.parent.mkdir(parents=True)
        marker.write_text("{}")
    before = picture(victim)
    lance_spark.cleanup(uri, older_than=DAY)
    assert picture(victim) == before


def plant_table(at: Path) -> Path:
    """Makes a foreign table with old files, unreferenced by the table under test."""
    for _ in range(2):
        lance.write_dataset(pa.table({"id": [1, 2, 3]}), at, mode="append")
    for file in at.rglob("*"):
        os.utime(file, (1, 1))
    return at


UUID = "0b7a3d5e-1c11-4f6e-9d44-111111111111"


@pytest.mark.parametrize(
    "link", ["data", "data/linked", "_versions/linked", f"_indices/{UUID}", "linked", "tree/dev"]
)
def test_no_link_in_a_table_leads_a_cleanup_of_versions_out_of_it(
    link: str, uri: str, tmp_path: Path
):
    victim = plant_table(tmp_path / "other.lance")
    place = Path(uri, link)
    if place.exists():
        place.rename(victim / "moved")
        victim = victim / "moved"
        (victim / "foreign.lance").write_text("of the victim")
        os.utime(victim / "foreign.lance", (1, 1))
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(victim)
    lance.write_dataset(pa.table({"id": [4]}), uri, mode="append")
    before = picture(tmp_path)
    for delete_unverified in (False, True):
        task = CleanupTask(
            table=DatasetRef.at(uri),
            older_than_s=0.0,
            delete_unverified=delete_unverified,
            error_if_tagged=False,
        )
        with pytest.raises(TableUnwritableError, match=r"holds the link .*Remove the link"):
            result_of(task.run(), uri)
    assert picture(tmp_path) == before
    place.unlink()


@pytest.mark.filterwarnings("ignore::lance_spark.DamagedRecordWarning")
@pytest.mark.parametrize(
    "link", ["_lance_spark", "_lance_spark/jobs.lance", "_lance_spark/jobs.lance/data"]
)
def test_the_history_behind_a_link_is_not_changed_and_a_repair_removes_the_link(
    link: str, uri: str, tmp_path: Path
):
    place = Path(uri, link)
    other_table = tmp_path / "tables/other.lance"
    lance.write_dataset(pa.table({"id": [1]}), other_table)
    for folder in (uri, str(other_table)):
        forge_job(folder, JOB)
    if link == "_lance_spark":
        shutil.rmtree(place)
    else:
        place.rename(tmp_path / "aside")
    place.symlink_to(other_table / link)
    table, before = lance_spark.open_table(uri), picture(other_table)
    history = JobHistory(DatasetRef.at(uri))
    for call in (table.list_jobs, lambda: lance_spark.cleanup(uri, older_than=DAY)):
        with pytest.raises(DamagedFileError, match=r"a link is not followed.*--repair") as caught:
            call()
        assert caught.value.files == (link,)
    record = JobHistory(DatasetRef.at(str(other_table))).jobs()[0]
    with pytest.raises(TableUnwritableError, match=r"is a link, and no link is followed.*--repair"):
        history.save(replace(record, status="RUNNING"))
    damages = lance_spark.check(uri).damages
    assert {damage.place for damage in damages} == {link} and not any(
        damage.repaired for damage in damages
    )
    assert picture(other_table) == before
    assert lance_spark.check(uri, repair=True).is_intact
    assert not place.is_symlink() and lance_spark.check(uri).damages == ()
    assert table.list_jobs() == [] and picture(other_table) == before


@pytest.mark.parametrize("name", ["x", ATTEMPT.upper(), "customers"])
def test_a_marker_with_another_id_than_ours_leads_to_no_data_file(name: str, uri: str):
    marker, file = (
        Path(uri, "_lance_spark/staging", JOB, name, "attempt"),
        Path(uri, f"data/{name}-0.lance"),
    )
    marker.parent.mkdir(parents=True)
    marker.write_text("{}")
    file.write_text("of others")
    lance_spark.cleanup(uri, older_than=DAY)
    assert file.read_text() == "of others"


@pytest.mark.parametrize(
    "age", [timedelta(seconds=-1), timedelta.min, timedelta.max, 7, None, "1 day", float("nan")]
)
def test_a_negative_or_impossible_age_is_refused_before_anything_is_deleted(
    age: Any, uri: str, tmp_path: Path
):
    forge_job(uri, JOB)
    (Path(uri) / "_lance_spark/staging" / JOB).mkdir(parents=True)
    before = picture(tmp_path)
    for clean in (lance_spark.cleanup, remove_orphans):
        with pytest.raises(OptionError, match="older_than"):
            clean(uri, older_than=age)
    assert picture(tmp_path) == before


def test_a_backfill_sweeps_no_folder_that_a_forged_job_and_a_link_name(
    spark: SparkSession, uri: str, tmp_path: Path
):
    @udf(version="1")
    def plus_one(id: int) -> int:
        return id + 1

    table = lance_spark.connect(f"{tmp_path}/tables", spark).open_table("t")
    table.add_columns({"f": plus_one})
    forge_job(uri, JOB, key=binding_of(lance.dataset(uri), "f").key.digest, status="FAILED")
    (Path(uri) / "_lance_spark/staging").mkdir(parents=True, exist_ok=True)
    (Path(uri) / "_lance_spark/staging" / JOB).symlink_to(tmp_path / "victim")
    before = picture(tmp_path / "victim")
    assert table.backfill("f").rows_computed == 3
    assert picture(tmp_path / "victim") == before
