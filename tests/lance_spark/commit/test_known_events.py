"""Walks over a table's history read each version once, also of tables that were created again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance import LanceOperation

from lance_spark.commit.conflicts import history, known_events
from lance_spark.commit.conflicts.history import (
    Change,
    Event,
    event_of,
    events_between,
    first_unknown,
)
from lance_spark.commit.conflicts.known_events import KnownEvents
from lance_spark.commit.schema_change import set_config
from lance_spark.dataset import DatasetRef
from lance_spark.options.io_options import WriteOptions
from lance_spark.write.arrow_rows import write_arrow_rows
from tests.lance_spark.dml.tables import make, rows
from tests.support import inline_rows

ROWS = pa.table({"id": range(4)})


class CountingEvents:
    """The known events of a process, and the versions that it read."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.versions: list[int] = []
        self.known = KnownEvents(self._read, max_bytes=max_bytes)

    def _read(self, dataset: lance.LanceDataset, version: int, is_kept: bool) -> Event:
        self.versions.append(version)
        return event_of(dataset, version, is_kept=is_kept)

    def names(self, dataset: lance.LanceDataset, after: int, upto: int | None = None) -> list[str]:
        versions = range(after + 1, (upto or dataset.version) + 1)
        return [event.name for event in self.known.walk(dataset, versions, first_block=1)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


@pytest.fixture
def events() -> CountingEvents:
    return CountingEvents()


def append(path: str, count: int) -> None:
    for _ in range(count):
        lance.write_dataset(ROWS, path, mode="append")


def delete(path: str, count: int) -> None:
    for number in range(count):
        lance.dataset(path).delete(f"id = {number}")


def test_two_walks_read_each_version_once(path: str, events: CountingEvents) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 5)
    for after in (2, 0, 4):
        assert events.names(lance.dataset(path), after)[-2:] == ["Append", "Append"]
    assert sorted(events.versions) == [1, 2, 3, 4, 5, 6]


def test_a_later_version_shares_the_events_of_an_earlier_one(
    path: str, events: CountingEvents
) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 5)
    events.names(lance.dataset(path), 0)
    delete(path, 2)
    assert events.names(lance.dataset(path), 1) == ["Append"] * 5 + ["Delete"] * 2
    assert len(events.versions) == 8


def test_a_short_walk_between_two_long_walks_costs_no_further_read(
    path: str, events: CountingEvents
) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 5)
    events.names(lance.dataset(path), 0)
    delete(path, 1)
    assert events.names(lance.dataset(path), 6) == ["Delete"]
    delete(path, 1)
    assert events.names(lance.dataset(path), 0) == ["Overwrite"] + ["Append"] * 5 + ["Delete"] * 2
    assert sorted(events.versions) == [1, 2, 3, 4, 5, 6, 7, 7, 8]


def test_the_first_known_events_are_those_of_an_older_handle(
    path: str, events: CountingEvents
) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 3)
    older = lance.dataset(path)
    append(path, 1)
    newer = lance.dataset(path)
    assert events.names(newer, 0) == ["Overwrite"] + ["Append"] * 4
    assert events.names(older, 0) == ["Overwrite"] + ["Append"] * 3


@pytest.mark.parametrize("more", [0, 3], ids=["same_version", "later_version"])
def test_a_table_that_was_created_again_has_its_own_events(
    path: str, events: CountingEvents, more: int
) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 5)
    assert events.names(lance.dataset(path), 1) == ["Append"] * 5
    shutil.rmtree(path)
    lance.write_dataset(ROWS, path)
    delete(path, 4)
    append(path, 1 + more)
    assert events.names(lance.dataset(path), 1) == ["Delete"] * 4 + ["Append"] * (1 + more)


def test_restored_versions_keep_their_events(path: str, events: CountingEvents) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 2)
    events.names(lance.dataset(path), 0)
    lance.dataset(path, version=1).restore()
    append(path, 1)
    assert events.names(lance.dataset(path), 0) == [
        "Overwrite",
        "Append",
        "Append",
        "Restore",
        "Append",
    ]


def test_memory_is_bounded_and_old_events_are_read_again(path: str) -> None:
    events = CountingEvents(max_bytes=20 << 10)
    lance.write_dataset(ROWS, path)
    append(path, 30)
    for _ in range(2):
        assert len(events.names(lance.dataset(path), 1)) == 30
    assert len(events.versions) == 60
    assert len(events.names(lance.dataset(path), 28)) == 3 and len(events.versions) == 60


def test_an_event_stays_known_after_a_cleanup_but_a_commit_asks_the_store(path: str) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 3)
    head = lance.dataset(path)
    assert [event.name for event in events_between(head, 1, 4)] == ["Append"] * 3
    head.cleanup_old_versions(timedelta(0))
    assert [event.name for event in events_between(head, 1, 4)] == ["Append"] * 3
    assert first_unknown(head, 1) == 2


@pytest.mark.parametrize(
    "walk", [lambda head: list(events_between(head, 3, 3)), lambda head: first_unknown(head, 3)]
)
def test_an_empty_range_reads_nothing(
    path: str, walk: Callable[[lance.LanceDataset], object]
) -> None:
    lance.write_dataset(ROWS, path)
    append(path, 3)
    head = lance.dataset(path)
    shutil.rmtree(path)
    assert not walk(head)


def commit_own(
    dataset: lance.LanceDataset,
    events: CountingEvents,
    number: int = 0,
    *,
    operation: LanceOperation.BaseOperation | None = None,
) -> lance.LanceDataset:
    """Commits a setting like this process, and notes the commit, as a commit of an operation."""
    setting = set_config({"number": str(number)})
    landed = lance.LanceDataset.commit(dataset, setting, read_version=dataset.version)
    event = Event(
        version=landed.version,
        operation=operation or setting,
        properties={},
        read_version=dataset.version,
    )
    events.known.note_commit(dataset, landed, event)
    return landed


def test_a_commit_of_a_hundred_files_is_known_without_a_read(
    path: str, events: CountingEvents
) -> None:
    dataset, groups = lance.write_dataset(ROWS, path), [Mock()] * 100
    landed = commit_own(dataset, events, operation=LanceOperation.DataReplacement(groups))
    assert events.names(landed, 1) == ["DataReplacement"] and events.versions == []


def test_commits_of_this_process_are_known_without_a_read(
    path: str, events: CountingEvents
) -> None:
    """And so are the events before them."""
    dataset = lance.write_dataset(ROWS, path)
    append(path, 1)
    dataset = lance.dataset(path)
    events.names(dataset, 0)
    read_versions = list(events.versions)
    for number in range(3):
        dataset = commit_own(dataset, events, number)
    assert events.names(dataset, 0) == ["Overwrite", "Append"] + ["UpdateConfig"] * 3
    assert events.versions == read_versions


def test_a_process_remembers_its_last_commits(path: str, events: CountingEvents) -> None:
    dataset = lance.write_dataset(ROWS, path)
    for number in range(40):
        dataset = commit_own(dataset, events, number)
    assert events.names(dataset, 0) == ["Overwrite"] + ["UpdateConfig"] * 40
    assert sorted(events.versions) == list(range(1, 10)), "32 commits are known"


def test_a_commit_to_a_table_that_was_created_again_is_of_another_history(
    path: str, events: CountingEvents
) -> None:
    dataset = lance.write_dataset(ROWS, path)
    commit_own(dataset, events)
    shutil.rmtree(path)
    dataset = commit_own(lance.write_dataset(ROWS, path), events)
    append(path, 1)
    assert events.names(lance.dataset(path), 0) == ["Overwrite", "UpdateConfig", "Append"]


def test_tables_are_bounded(
    tmp_path: Path, events: CountingEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_events, "_TABLES", 2)
    datasets = [lance.write_dataset(ROWS, tmp_path / f"{number}.lance") for number in range(4)]
    events.names(datasets[3], 0)
    first, second, third = (commit_own(dataset, events) for dataset in datasets[:3])
    assert list(events.known._trails) == [second.uri, third.uri]
    assert len(events.known._sizes) == 2 and events.known._bytes == sum(
        events.known._sizes.values()
    )
    events.versions.clear()
    assert (
        events.names(second, 1) == events.names(third, 1) == ["UpdateConfig"]
        and not events.versions
    )
    assert events.names(first, 1) == ["UpdateConfig"] and events.versions == [2], (
        "forgotten with its table"
    )


def delete_of(predicate: str) -> LanceOperation.Delete:
    return LanceOperation.Delete(updated_fragments=[], deleted_fragment_ids=[], predicate=predicate)


def update_of(dataset: lance.LanceDataset, *, bitmap: int = 0) -> LanceOperation.Update:
    (fragment,) = dataset.get_fragments()
    metadata = fragment.metadata
    offsets = {fragment.fragment_id: bytes(bitmap)} if bitmap else None
    return LanceOperation.Update(updated_fragments=[metadata], updated_fragment_offsets=offsets)


def test_sizes_of_events_count_predicates_and_bitmaps(path: str) -> None:
    dataset = lance.write_dataset(ROWS, path)
    small = [delete_of(""), update_of(dataset)]
    large = [delete_of("x" * 10_000), update_of(dataset, bitmap=10_000)]
    for less, more in zip(small, large, strict=True):
        sizes = [
            known_events._size_of(Event(version=1, operation=each, properties={}))
            for each in (less, more)
        ]
        assert sizes[1] - sizes[0] >= 10_000


def test_known_events_have_no_row_ids(path: str, events: CountingEvents) -> None:
    make(path)
    inline_rows.update(path, "id IN (2, 13)", a="a + 1")
    lance.dataset(path).optimize.compact_files(target_rows_per_fragment=100)
    dataset = lance.dataset(path)
    seen = {
        event.name: event.operation
        for event in events.known.walk(dataset, range(1, dataset.version + 1), first_block=9)
    }
    update, rewrite = seen["Update"], seen["Rewrite"]
    assert isinstance(update, LanceOperation.Update) and isinstance(rewrite, LanceOperation.Rewrite)
    fragments = [*update.updated_fragments, *update.new_fragments]
    for group in rewrite.groups:
        fragments += [*group.old_fragments, *group.new_fragments]
    assert len(fragments) > 4 and {fragment.row_id_meta for fragment in fragments} == {None}


def test_an_own_commit_replaces_known_events_of_lost_versions(
    path: str, tmp_path: Path, events: CountingEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event of the commit itself is too large to be kept."""
    lance.write_dataset(ROWS, path)
    append(path, 1)
    shutil.copytree(path, tmp_path / "copy")
    events.names(lance.dataset(path), 0)
    append(path, 2)
    assert events.names(lance.dataset(path), 0) == ["Overwrite"] + ["Append"] * 3
    shutil.rmtree(path)
    shutil.move(tmp_path / "copy", path)
    monkeypatch.setattr(known_events, "_OWN_BYTES", 0)
    dataset = lance.dataset(path)
    for number in range(2):
        dataset = commit_own(dataset, events, number)
    assert events.names(dataset, 0) == ["Overwrite", "Append"] + ["UpdateConfig"] * 2


@pytest.mark.parametrize("statement", ["update", "delete", "append"])
def test_a_noted_commit_reads_back_as_committed(
    statement: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(path)
    before = lance.dataset(path).version
    if statement == "update":
        inline_rows.update(path, "id IN (2, 13)", a="a + 1")
    elif statement == "delete":
        inline_rows.delete(path, "id = 2")
    else:
        write_arrow_rows(
            DatasetRef.at(path),
            lambda _: rows(range(90, 93)).to_reader(),
            mode="append",
            options=WriteOptions(),
        )
    dataset = lance.dataset(path)
    with monkeypatch.context() as patch:
        patch.setattr(history, "event_of", None)  # no read
        (noted,) = events_between(dataset, before, dataset.version)
    stored = event_of(dataset, dataset.version)
    assert (noted.name, noted.properties, noted.read_version) == (
        stored.name,
        stored.properties,
        stored.read_version,
    )
    noted_change, stored_change = Change.of(noted), Change.of(stored)
    for name in Change.__dataclass_fields__:
        assert np.array_equal(getattr(noted_change, name), getattr(stored_change, name)), name
