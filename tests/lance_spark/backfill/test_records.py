"""Records of computed rows: stored once, found again, and never lost to a compaction, a crash or a concurrent
writer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark.backfill.reuse.computed_rows import RECORDS, RecordStore
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.jobs import table_files
from lance_spark.rows.row_set import RowSet
from tests.support.records import record

pytestmark = pytest.mark.sample(1, tests=2)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(DatasetRef.at(str(tmp_path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / RECORDS.name


def test_records_come_back_newest_first(store: RecordStore) -> None:
    assert len(store.load("token")) == 0 and store.load("token").of(1) == []
    first, second, third = record(1, 5), record(1, 9), record(1, 7)
    other_records = [record(2, 5), record(0, 9)]
    for some in ([first, other_records[0]], [second, other_records[1]], [third], []):
        store.append(some)
    loaded = store.load("token")
    assert loaded.of(1) == [second, third, first]
    assert (loaded.of(2), loaded.of(0), loaded.of(3)) == (
        [other_records[0]],
        [other_records[1]],
        [],
    )
    assert loaded.fragment_ids == {0, 1, 2} and len(loaded) == 5
    assert list(loaded) == [other_records[1], second, third, first, other_records[0]]
    assert pickle.loads(pickle.dumps(store)).load("token").of(1) == [second, third, first]


def test_the_same_records_again_change_nothing(store: RecordStore) -> None:
    store.append([record(1, 5), record(2, 5)])
    store.append([record(2, 5)])
    store.append([record(1, 5), record(2, 5)])
    assert list(store.load("token")) == [record(1, 5), record(2, 5)]


def test_columns_are_kept_apart_whatever_their_names(store: RecordStore) -> None:
    columns = ["a", "A", "a/b", "é", "it's", "x" * 300, "x" * 301]
    store.append([record(1, 5, column=column) for column in columns])
    for column in columns:
        assert store.load(column).of(1) == [record(1, 5, column=column)]
    assert len(store.load("b")) == 0


@pytest.mark.long
def test_many_commits_end_in_few_fragments(store: RecordStore, folder: Path) -> None:
    records = [record(version % 7, version) for version in range(1, 150)]
    for fragment_record in records:
        store.append([fragment_record])
    assert sorted(store.load("token"), key=lambda r: r.table_version) == records
    assert len(lance.dataset(folder).get_fragments()) <= 3


def test_versions_of_a_busy_table_are_removed_too(
    store: RecordStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More versions than `KEPT_VERSIONS` are always young, and the table must not grow without end."""
    store.append([record(1, 1)])
    dataset = lance.dataset(folder)
    for number in range(19):
        dataset.update_config({"number": str(number)})
    monkeypatch.setattr(table_files, "KEPT_VERSIONS", 4)
    now, young = datetime.now(UTC), 9

    def moment_of(version: Mapping[str, Any]) -> datetime:
        return now - timedelta(minutes=20 if version["version"] <= dataset.version - young else 0)

    monkeypatch.setattr(table_files, "moment_of", moment_of)
    assert dataset.version == 20 and table_files._has_old_versions(dataset)
    young = 15
    assert not table_files._has_old_versions(dataset), (
        "a removal would read many manifests for few versions"
    )


def test_old_versions_are_removed_together(
    store: RecordStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "KEPT_VERSIONS", 4)
    at = DatasetRef.at(str(folder))
    for version in range(1, 5):
        store.append([record(1, version)])
    monkeypatch.setattr(table_files, "_READERS_TAKE", timedelta(0))
    table_files.compact(at)
    assert len(lance.dataset(folder).versions()) == 4, "too few to read their manifests"
    store.append([record(1, 5)])
    monkeypatch.setattr(table_files, "_READERS_TAKE", timedelta(minutes=10))
    table_files.compact(at)
    assert len(lance.dataset(folder).versions()) == 5, "readers may use them"
    monkeypatch.setattr(table_files, "_READERS_TAKE", timedelta(0))
    table_files.compact(at)
    assert len(lance.dataset(folder).versions()) == 1
    assert len(store.load("token")) == 5


APPENDING = """
import sys
from lance_spark.backfill.reuse.computed_rows import RecordStore
from lance_spark.dataset import DatasetRef
from tests.support.records import record
store = RecordStore(DatasetRef.at(sys.argv[1]))
for version in range(1, 10_000):
    store.append([record(1, version)])
    print(version, flush=True)
"""


def test_a_driver_that_is_killed_loses_no_record_that_was_there(store: RecordStore) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", APPENDING, store.ref.uri], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    last = 0
    for last in map(int, driver.stdout):
        if last == 40:
            driver.kill()
    driver.wait()
    driver.stdout.close()
    versions = [fragment_record.table_version for fragment_record in store.load("token").of(1)]
    assert versions in (list(range(last, 0, -1)), list(range(last + 1, 0, -1))) and last >= 40
    store.append([record(1, 1000)])
    assert store.load("token").of(1)[0] == record(1, 1000)


@pytest.mark.long
def test_concurrent_appends_compactions_and_reads_lose_no_record(store: RecordStore) -> None:
    store.append([record(9, version) for version in range(1, 40)])
    failures: list[BaseException] = []
    rounds: dict[int, int] = dict.fromkeys(range(3), 0)
    over = threading.Event()

    def write(fragment: int) -> None:
        for version in range(1, 41):
            store.append([record(fragment, version)])
            rounds[fragment] = version

    def compact() -> None:
        for version in range(1, 40):
            store.compact(
                "token",
                keep=lambda fragment_record, at=version: (
                    fragment_record.fragment_id != 9 or fragment_record.table_version > at
                ),
            )

    def read() -> None:
        while not over.is_set():
            least = dict(rounds)
            loaded = store.load("token")
            for fragment, version in least.items():
                versions = [
                    fragment_record.table_version for fragment_record in loaded.of(fragment)
                ]
                assert versions == list(range(len(versions), 0, -1)) and len(versions) >= version

    def checked(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [
        threading.Thread(target=checked, args=[lambda f=fragment: write(f)]) for fragment in rounds
    ]
    threads.append(threading.Thread(target=checked, args=[compact]))
    reader = threading.Thread(target=checked, args=[read])
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    reader.join()
    assert failures == []
    assert len(store.load("token")) == 120


def test_a_compaction_drops_unneeded_records(store: RecordStore, folder: Path) -> None:
    for version in range(1, 6):
        store.append([record(1, version), record(2, version), record(1, version, column="other")])
    assert (
        store.compact("token", keep=lambda fragment_record: fragment_record.table_version > 3) == 6
    )
    assert len(lance.dataset(folder).get_fragments()) == 1
    assert [fragment_record.table_version for fragment_record in store.load("token").of(2)] == [
        5,
        4,
    ]
    assert store.compact("token", keep=lambda fragment_record: True) == 0
    store.append([record(3, 9)])
    assert store.compact("token", keep=lambda fragment_record: False) == 5
    assert len(store.load("token")) == 0 and len(store.load("other")) == 5
    assert store.compact("token", keep=lambda fragment_record: True) == 0


def test_a_deleted_table_of_records_is_created_again(store: RecordStore, folder: Path) -> None:
    for version in (1, 2, 3):
        store.append([record(1, version)])
    assert len(store.load("token")) == 3
    shutil.rmtree(folder)
    assert len(store.load("token")) == 0 and store.compact("token", keep=lambda _record: False) == 0
    for version in (4, 5, 6):
        store.append([record(1, version)])
        assert store.load("token").of(1)[0] == record(1, version)
    assert len(store.load("token")) == 3


def data_files(folder: Path) -> list[Path]:
    return sorted((folder / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    """In the name of the file, which every byte of the record must match."""
    payload = path.read_bytes()
    assert payload.count(b"2-1.lance") == 1
    path.write_bytes(payload.replace(b"2-1.lance", b"3-1.lance"))


@pytest.mark.parametrize(
    "damage", [cut_off, flip_a_bit, Path.unlink, lambda path: path.write_bytes(b"")]
)
def test_damaged_records_are_left_out_with_a_warning(
    store: RecordStore,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], object],
) -> None:
    monkeypatch.setattr("lance_spark.jobs.merging_append._ABSORBED_ROWS", 0)
    for version in (1, 2, 3):
        store.append([record(1, version)])
    damage(data_files(folder)[1])
    with caplog.at_level(logging.WARNING):
        assert store.load("token").of(1) == [record(1, 3), record(1, 1)]
    assert len(caplog.records) == 1 and "damaged" in caplog.text
    store.append([record(1, 2)])
    assert store.load("token").of(1) == [record(1, 3), record(1, 2), record(1, 1)], (
        "writing them again repairs it"
    )
    store.compact("token", keep=lambda fragment_record: fragment_record.table_version > 2)


def another_table(folder: Path) -> None:
    shutil.rmtree(folder)
    lance.write_dataset(pa.table({"x": [1]}), folder)


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_bytes(b"x")


def a_damaged_manifest(folder: Path) -> None:
    cut_off(min((folder / "_versions").iterdir()))


@pytest.mark.parametrize(
    "replace_by", [another_table, pytest.param(a_file, marks=pytest.mark.long), a_damaged_manifest]
)
def test_a_foreign_table_in_place_of_the_records_is_ignored(
    store: RecordStore,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    replace_by: Callable[[Path], None],
) -> None:
    store.append([record(1, 1)])
    replace_by(folder)
    assert len(store.load("token")) == 0 and "not used" in caplog.text
    store.append([record(1, 2)])
    assert "what was computed is not recorded" in caplog.text
    assert len(store.load("token")) == 0 and store.compact("token", keep=lambda _record: False) == 0


@pytest.mark.parametrize("kind", ["data", "_versions"])
def test_a_store_that_refuses_is_an_error_and_not_an_empty_record(
    store: RecordStore, folder: Path, kind: str
) -> None:
    store.append([record(1, 1)])
    # Permissions mean nothing to root. No process can open the file of a socket.
    path = min((folder / kind).iterdir())
    path.unlink()
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{short}/socket")
        os.rename(f"{short}/socket", path)
        with pytest.raises(TableUnreadableError, match="No such device"):
            store.load("token")


@pytest.mark.parametrize("sets", [{"nulls": RowSet.of([7])}, {"failed": RowSet.of([3])}])
def test_sets_that_contradict_each_other_are_refused(sets: dict[str, RowSet]) -> None:
    with pytest.raises(ValueError, match="fragment 1"):
        record(1, 1, **sets)


def digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


@pytest.mark.long
def test_a_hundred_thousand_fragments_are_recorded_quickly_and_in_little_space(
    store: RecordStore, folder: Path
) -> None:
    """Each fragment has its own input files; four fragments share an attempt, and a few rows failed."""
    rows = RowSet.span(0, 1_000_000)
    failed = [RowSet.of([row, row * 7 + 99]) for row in range(0, 100_000, 1000)]
    computed = [rows - some for some in failed]
    nulls = [RowSet.of([row + 1, row + 9]) for row in range(100)]
    some = [
        record(
            fragment,
            fragment // 64 + 1,
            physical_rows=1_000_000,
            key=digest("key"),
            source=digest("source", fragment),
            target_file=f"{digest('attempt', fragment // 4)}6740a1b2-{fragment % 4}.lance",
            computed=computed[fragment % 100],
            failed=failed[fragment % 100],
            nulls=nulls[fragment % 100],
        )
        for fragment in range(100_000)
    ]
    cpu_s = []
    for first in range(0, 100_000, 64):
        start_s = time.process_time()
        store.append(some[first : first + 64])
        cpu_s.append(time.process_time() - start_s)
    print(f"a group of 64: {statistics.median(cpu_s[-200:]) * 1e3:.1f} ms, all: {sum(cpu_s):.1f} s")
    assert statistics.median(cpu_s[-200:]) < 0.05
    start_s = time.process_time()
    loaded = store.load("token")
    assert loaded.of(54_321) == [some[54_321]] and len(loaded) == 100_000
    load_s = time.process_time() - start_s
    print(f"load: {load_s:.2f} s")
    assert load_s < 3
    current = [
        file.path
        for fragment in lance.dataset(folder).get_fragments()
        for file in fragment.data_files()
    ]
    size_bytes = sum(os.path.getsize(folder / "data" / path) for path in current)
    print(f"{size_bytes / 1e6:.1f} MB")
    assert 1_000_000 < size_bytes < 8_000_000
