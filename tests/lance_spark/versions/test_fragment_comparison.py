"""The fragments of two versions tell the moves of rows as the history does, or leave the answer to the history."""

from __future__ import annotations

import random
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.commit.conflicts import history
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.commit.conflicts.row_lineage import LineageFacts
from lance_spark.dataset import DatasetRef
from lance_spark.rebase.fragment_comparison import FragmentComparison
from lance_spark.rebase.source_changes import SourceChanges, affected


def append(path: str, rng: random.Random) -> None:
    ids = [rng.randrange(1 << 30) for _ in range(rng.randrange(1, 30))]
    lance.write_dataset(pa.table({"id": ids, "x": ids}), path, mode="append", max_rows_per_file=10)


def delete(path: str, rng: random.Random) -> None:
    lance.dataset(path).delete(f"id % {rng.randrange(2, 9)} = 1")


def update(path: str, rng: random.Random) -> None:
    lance.dataset(path).update({"x": "x + 1"}, f"id % {rng.randrange(2, 9)} = 0")


def compact(path: str, rng: random.Random) -> None:
    lance.dataset(path).optimize.compact_files(target_rows_per_fragment=rng.choice([15, 1000]))


def restore(path: str, rng: random.Random) -> None:
    lance.dataset(path, version=rng.randrange(1, lance.dataset(path).version + 1)).restore()


def add_column(path: str, rng: random.Random) -> None:
    lance.dataset(path).add_columns({f"c{rng.randrange(1 << 30)}": "x * 2"})


OPERATIONS = (append, append, delete, update, compact, restore, add_column)


def changes_of(source: DatasetRef, base: DatasetRef, *, by_fragments: bool) -> dict[str, set[int]]:
    """Returns the ids of the new, changed and deleted rows."""
    used = tuple(
        field for field in field_identities(base.open().lance_schema) if field.name in ("id", "x")
    )
    look = affected(source, base, used)
    before, after = base.version or 0, source.version or 0
    events = history.events_between(source.open(), before, after)
    lineage = (
        look.lineage
        if by_fragments
        else LineageFacts.of(map(history.Change.of, events), before, after)
    )
    difference = SourceChanges(source, base, used, lineage=lineage)
    ids: dict[str, set[int]] = {"new": set(), "changed": set(), "deleted": set()}
    for number, _ in look.now:
        rows = difference.row_changes(number)
        ids["new"] |= {number << 32 | int(row) for row in rows.new.to_numpy()}
        ids["changed"] |= {number << 32 | int(row) for row in rows.changed.to_numpy()}
    for number, _ in look.then:
        ids["deleted"] |= {number << 32 | int(row) for row in difference.deleted(number).to_numpy()}
    return ids


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))]
)
def test_fragments_and_history_tell_the_same_changes(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), str(tmp_path / "t.lance")
    ids = list(range(40))
    lance.write_dataset(
        pa.table({"id": ids, "x": ids}), path, max_rows_per_file=10, enable_stable_row_ids=True
    )
    for _ in range(6):
        rng.choice(OPERATIONS)(path, rng)
    latest = DatasetRef.at(path).pin(None)
    for version in range(1, (latest.version or 0) + 1):
        base = DatasetRef.at(path).pin(version)
        assert changes_of(latest, base, by_fragments=True) == changes_of(
            latest, base, by_fragments=False
        )


@pytest.mark.parametrize(
    ("operations", "is_decided"),
    [((append, append), True), ((delete,), True), ((add_column, append), True), ((update,), False), ((compact,), False),
     ((delete, append), False), ((add_column, delete), True)],
    ids=lambda value: "_".join(operation.__name__ for operation in value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_no_transaction_is_read_where_the_fragments_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: tuple, is_decided: bool
) -> None:
    path, rng = str(tmp_path / "t.lance"), random.Random(1)
    lance.write_dataset(pa.table({"id": range(40), "x": range(40)}), path, max_rows_per_file=10)
    base = DatasetRef.at(path).pin(None)
    for operation in operations:
        operation(path, rng)
    head = DatasetRef.at(path).pin(None)
    assert FragmentComparison.of(base.open(), head.open()).is_decided == is_decided
    versions: list[int] = []
    read = history.event_of

    def count(dataset: lance.LanceDataset, version: int, *, is_kept: bool = True) -> history.Event:
        versions.append(version)
        return read(dataset, version, is_kept=is_kept)

    monkeypatch.setattr(history, "event_of", count)
    affected(head, base, field_identities(base.open().lance_schema))
    assert bool(versions) != is_decided
