"""Writes, statements and environments on a real standalone cluster, and the death of its parts during a write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import lance
import psutil
import pyarrow as pa
import pytest

from tests.cluster.conftest import ClusterJob, StandaloneCluster
from tests.cluster.jobs import PADDING, ROWS

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def data_files(path: str) -> set[str]:
    folder = Path(path, "data")
    return {entry.name for entry in folder.iterdir()} if folder.exists() else set()


def files_of_all_versions(path: str) -> set[str]:
    dataset = lance.dataset(path)
    versions = [dataset.checkout_version(version["version"]) for version in dataset.versions()]
    return {
        file.path
        for version in versions
        for fragment in version.get_fragments()
        for file in fragment.data_files()
    }


def staged(path: str) -> list[str]:
    return [
        str(entry) for entry in Path(path, "_lance_spark", "staging").rglob("*") if entry.is_file()
    ]


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def lose_executor(cluster: StandaloneCluster, writing: psutil.Process) -> None:
    kill(cluster.executor_of(writing))


def lose_python_worker(cluster: StandaloneCluster, writing: psutil.Process) -> None:
    kill(writing)


def lose_machine(cluster: StandaloneCluster, writing: psutil.Process) -> None:
    cluster.lose_machine_of(writing)


Loss = Callable[[StandaloneCluster, psutil.Process], None]


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lose_executor, marks=pytest.mark.long),
        pytest.param(lose_python_worker, marks=pytest.mark.long),
        pytest.param(lose_machine, marks=pytest.mark.long),
    ],
    ids=lambda lose: lose.__name__,
)
def test_a_write_survives_the_loss_of(lose: Loss, cluster: StandaloneCluster, table_path: str):
    job = ClusterJob("write_slowly", cluster, table_path)
    try:
        job.lose(lose, cluster, table_path)
        job.result()
    finally:
        job.end()
    dataset = lance.dataset(table_path)
    assert dataset.version == 1, "one write is one version"
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(ROWS)), (
        "nothing is lost or doubled"
    )
    assert data_files(table_path) == files_of_all_versions(table_path), (
        "killed attempts leave no file"
    )
    assert staged(table_path) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "lose", [lose_executor, lose_python_worker], ids=lambda lose: lose.__name__
)
def test_a_backfill_survives_the_loss_of(lose: Loss, cluster: StandaloneCluster, table_path: str):
    ids = list(range(1200))
    table = pa.table({"id": ids, "text": [f"text {i}" + "x" * PADDING for i in ids]})
    lance.write_dataset(table, table_path, max_rows_per_file=300, enable_stable_row_ids=True)
    job = ClusterJob("backfill_slowly", cluster, table_path)
    try:
        job.lose(lose, cluster, table_path)
        job.result()
    finally:
        job.end()
    after = lance.dataset(table_path).to_table()
    assert after["upper"].to_pylist() == [text.upper() for text in after["text"].to_pylist()]
    assert sorted(after["id"].to_pylist()) == ids
    assert data_files(table_path) == files_of_all_versions(table_path)
    assert staged(table_path) == []


@pytest.mark.long
def test_statements_of_sql_on_two_executors(cluster: StandaloneCluster, tmp_path: Path):
    job = ClusterJob("sql", cluster, str(tmp_path / "db"))
    try:
        result = job.result()
    finally:
        job.end()
    doubled = sum(2 * i for i in range(0, 2990, 2))
    assert result == {
        "rows": [3010, doubled - 10 - 20, 10, 10],
        "column files": True,
        "executors": 2,
    }


@pytest.mark.long
def test_each_machine_makes_the_environments_of_its_tasks(
    cluster: StandaloneCluster, tmp_path: Path
):
    job = ClusterJob("environments", cluster, str(tmp_path / "db"))
    try:
        result = job.result()
    finally:
        job.end()
    checksums = result.pop("checksums")
    assert result == {"computed": [400, 400], "right": 400, "refused": True}
    homes = [cluster.home_of(number) for number in range(1, cluster.started + 1)]
    environment_folders = [
        {
            path.parent.name
            for path in home.glob(".cache/lance-spark/environments/*/environment.json")
        }
        for home in homes
    ]
    for checksum in checksums:  # type: ignore[attr-defined]
        assert (
            sum(
                any(name.startswith(checksum[:32]) for name in names)
                for names in environment_folders
            )
            == 2
        )
    assert not any("no-such" in path.name for home in homes for path in home.rglob("*"))
