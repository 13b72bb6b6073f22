"""Records of what was computed: kept once, found again, and never lost to a merge, a crash or another process."""

from __future__ import annotations

import hashlib
import itertools
import logging
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lance_spark.backfill.reuse import computed_rows as module
from lance_spark.backfill.reuse.computed_rows import FragmentRecord, Records, RecordStore
from lance_spark.rows.row_set import RowSet
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.errors import CheckpointError


def record(fragment: int, version: int, **changes) -> FragmentRecord:
    made = FragmentRecord(
        column="token",
        fragment_id=fragment,
        physical_rows=100,
        table_version=version,
        job_id=f"job-{version}",
        key="k" * 32,
        udf_version="v1",
        source=f"source of {fragment}",
        target_file=f"{version}-{fragment}.lance",
        computed=RowSet.all(100) - RowSet.of([7]),
        nulls=RowSet.of([3, 4]),
        failed=RowSet.of([7]),
    )
    return replace(made, **changes)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(LocalObjects(str(tmp_path)))


def names(store: RecordStore) -> list[str]:
    return [path.rpartition("/")[2] for path in store.objects.list(store.root)]


def test_records_come_back_newest_first(store: RecordStore) -> None:
    assert len(store.load("token")) == 0 and store.load("token").of(1) == []
    first, second, third = record(1, 5), record(1, 9), record(1, 7)
    others = [record(2, 5), record(0, 9)]
    for some in ([first, others[0]], [second, others[1]], [third]):
        store.append(some)
    found = store.load("token")
    assert found.of(1) == [second, third, first]
    assert (found.of(2), found.of(0), found.of(3)) == ([others[0]], [others[1]], [])
    assert found.fragment_ids == {0, 1, 2} and len(found) == 5
    assert list(found) == [others[1], second, third, first, others[0]]
    assert pickle.loads(pickle.dumps(store)).load("token").of(1) == [second, third, first]


def test_the_same_records_again_change_nothing(store: RecordStore) -> None:
    some = [record(1, 5), record(2, 5)]
    store.append(some)
    before = names(store)
    store.append(some)
    assert names(store) == before
    assert len(store.load("token")) == 2


def test_the_same_records_in_another_object_count_once(store: RecordStore) -> None:
    store.append([record(1, 5), record(2, 5)])
    store.append([record(2, 5)])
    assert len(names(store)) == 2
    assert list(store.load("token")) == [record(1, 5), record(2, 5)]


def test_columns_are_kept_apart_whatever_their_names(store: RecordStore) -> None:
    columns = ["a", "A", "a/b", "é", "x" * 300, "x" * 301]
    store.append([record(1, 5, column=column) for column in columns])
    for column in columns:
        assert store.load(column).of(1) == [record(1, 5, column=column)]
    store.append([])
    assert len(store.load("b")) == 0


@pytest.mark.parametrize("most", [1, 2, 5])
def test_many_commits_end_in_few_objects(store: RecordStore, monkeypatch, most: int) -> None:
    monkeypatch.setattr(module, "_MOST_OBJECTS", most)
    made = []
    for version in range(1, 61):
        made.append(record(version % 7, version))
        store.append(made[-1:])
        found = store.load("token")
        assert sorted(found, key=lambda r: r.table_version) == made
        levels = [name.partition("-")[0] for name in names(store)]
        assert max(levels.count(level) for level in levels) <= most


def test_records_that_were_merged_can_be_appended_again(store: RecordStore, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MOST_OBJECTS", 2)
    some = [record(1, version) for version in range(1, 8)]
    for one in [*some, *some]:
        store.append([one])
    assert store.load("token").of(1) == some[::-1]


class Crash(BaseException):
    """The process is dead."""


class Mortal(LocalObjects):
    """Dies at the n-th change, before or after it is done."""

    changes = 0
    dies_at = -1
    before = True

    def _step(self, act) -> None:
        cls = type(self)
        cls.changes += 1
        if cls.changes == cls.dies_at and cls.before:
            raise Crash
        act()
        if cls.changes == cls.dies_at:
            raise Crash

    def put(self, path: str, data: bytes) -> None:
        self._step(lambda: LocalObjects.put(self, path, data))

    def delete(self, path: str) -> None:
        self._step(lambda: LocalObjects.delete(self, path))


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_at_any_point_loses_no_record_that_was_there(tmp_path: Path, monkeypatch, before: bool) -> None:
    monkeypatch.setattr(module, "_MOST_OBJECTS", 2)
    monkeypatch.setattr(Mortal, "before", before)
    made = [record(1, version) for version in range(1, 8)]
    survived = 0
    for dies_at in itertools.count(1):
        monkeypatch.setattr(Mortal, "changes", 0)
        monkeypatch.setattr(Mortal, "dies_at", dies_at)
        store = RecordStore(Mortal(str(tmp_path / str(dies_at))))
        done: list[FragmentRecord] = []
        try:
            for one in made:
                store.append([one])
                done.append(one)
        except Crash:
            found = store.load("token").of(1)[::-1]
            assert found in (done, [*done, made[len(done)]])
            monkeypatch.setattr(Mortal, "dies_at", -1)
            for one in made[len(done) :]:
                store.append([one])
            survived += 1
        assert store.load("token").of(1) == made[::-1]
        assert len(names(store)) <= 6
        if Mortal.dies_at == dies_at:
            break
    assert survived > 7, "there were merges to die in"


def test_appends_merges_and_reads_beside_each_other_lose_nothing(store: RecordStore, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MOST_OBJECTS", 2)
    failures: list[BaseException] = []
    done: dict[int, int] = dict.fromkeys(range(3), 0)
    over = threading.Event()

    def write(fragment: int) -> None:
        try:
            for version in range(1, 31):
                store.append([record(fragment, version)])
                done[fragment] = version
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    def read() -> None:
        try:
            while not over.is_set():
                least = dict(done)
                found = store.load("token")
                for fragment, version in least.items():
                    versions = [one.table_version for one in found.of(fragment)]
                    assert versions == list(range(len(versions), 0, -1)) and len(versions) >= version
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=write, args=[fragment]) for fragment in done]
    reader = threading.Thread(target=read)
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    reader.join()
    assert failures == []
    assert len(store.load("token")) == 90


def test_a_compaction_drops_what_is_not_needed(store: RecordStore) -> None:
    for version in range(1, 6):
        store.append([record(1, version), record(2, version)])
    assert store.compact("token", keep=lambda one: one.table_version > 3) == 6
    assert len(names(store)) == 1
    assert [one.table_version for one in store.load("token").of(2)] == [5, 4]
    assert store.compact("token", keep=lambda one: True) == 0
    store.append([record(3, 9)])
    assert store.compact("token", keep=lambda one: False) == 5
    assert names(store) == [] and len(store.load("token")) == 0
    assert store.compact("token", keep=lambda one: True) == 0


def test_a_damaged_object_is_left_out_with_a_warning(store: RecordStore, tmp_path: Path, caplog) -> None:
    store.append([record(1, 1)])
    (bad,) = names(store)
    store.append([record(1, 2)])
    path = next(tmp_path.rglob(bad))
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert store.load("token").of(1) == [record(1, 2)]
    assert len(caplog.records) == 1 and bad in caplog.text
    store.append([record(1, 1)])
    assert store.load("token").of(1) == [record(1, 2), record(1, 1)], "writing them again repairs it"


def test_objects_of_another_column_or_maker_are_not_used(store: RecordStore, tmp_path: Path, caplog) -> None:
    store.append([record(1, 1), record(1, 1, column="other")])
    own, other = (next((tmp_path / "records" / column).iterdir()) for column in ("token", "other"))
    (own.parent / "stray").write_bytes(b"x")
    (own.parent / "x-y.rec").write_bytes(b"x")
    own.write_bytes(other.read_bytes())
    assert len(store.load("token")) == 0
    assert caplog.text.count("belong to something else") == 1


class Refusing(LocalObjects):
    """Lets nobody read, or delete."""

    def get(self, path: str) -> bytes | None:
        raise OSError(f"no access to {path}")

    def delete(self, path: str) -> None:
        raise OSError(f"no access to {path}")


def test_a_store_that_refuses_is_an_error_and_not_an_empty_record(store: RecordStore, tmp_path: Path) -> None:
    store.append([record(1, 1)])
    with pytest.raises(CheckpointError, match="cannot be read: no access"):
        RecordStore(Refusing(str(tmp_path))).load("token")


def test_records_that_cannot_be_merged_are_stored_all_the_same(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "_MOST_OBJECTS", 1)
    refusing = RecordStore(Refusing(str(tmp_path)))
    for version in (1, 2):
        refusing.append([record(1, version)])
    assert "stay in more objects" in caplog.text
    assert len(RecordStore(LocalObjects(str(tmp_path))).load("token")) == 2


@pytest.mark.parametrize("sets", [{"nulls": RowSet.of([7])}, {"failed": RowSet.of([3])}])
def test_sets_that_contradict_each_other_are_refused(sets: dict[str, RowSet]) -> None:
    with pytest.raises(ValueError, match="fragment 1"):
        record(1, 1, **sets)


def digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


@pytest.mark.long
def test_a_hundred_thousand_fragments_take_less_than_eight_megabytes(store: RecordStore) -> None:
    """Each fragment with its own input files, four fragments to an attempt that wrote their files, and a few rows that failed."""
    rows = RowSet.all(1_000_000)
    failed = [RowSet.of([row, row * 7 + 99]) for row in range(0, 100_000, 1000)]
    computed = [rows - some for some in failed]
    nulls = [RowSet.of([row + 1, row + 9]) for row in range(100)]
    some = [
        record(
            fragment,
            fragment // 10_000 + 1,
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
    for start in range(0, 100_000, 10_000):
        store.append(some[start : start + 10_000])
    size_bytes = sum(len(store.objects.get(path) or b"") for path in store.objects.list("records"))
    print(f"{size_bytes / 1e6:.1f} MB")
    assert 1_000_000 < size_bytes < 8_000_000
    start_s = time.process_time()
    found: Records = store.load("token")
    assert found.of(54_321) == [some[54_321]] and len(found) == 100_000
    seconds = time.process_time() - start_s
    print(f"{seconds:.2f} s")
    assert seconds < 3
