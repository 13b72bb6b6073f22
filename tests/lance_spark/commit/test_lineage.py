"""Rows followed through real compactions, one by one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata
from lance.optimize import Compaction

from lance_spark.commit.conflicts.row_lineage import Lineage

pytestmark = pytest.mark.sample(1, tests=2)


@pytest.fixture(params=[True, False], ids=["stable", "addresses"])
def stable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table.lance")


class LineageTable:
    """A table of unique ids, and its possible changes."""

    def __init__(
        self, path: str, *, stable: bool, rows: int = 100, rows_per_file: int = 20
    ) -> None:
        self.path = path
        self.next_id = rows
        lance.write_dataset(
            pa.table({"id": range(rows), "x": range(rows)}),
            path,
            max_rows_per_file=rows_per_file,
            enable_stable_row_ids=stable,
        )

    @property
    def head(self) -> lance.LanceDataset:
        return lance.dataset(self.path)

    @property
    def version(self) -> int:
        return self.head.version

    def append(self, rows: int, rows_per_file: int = 10) -> None:
        ids = range(self.next_id, self.next_id + rows)
        self.next_id += rows
        lance.write_dataset(
            pa.table({"id": ids, "x": ids}),
            self.path,
            mode="append",
            max_rows_per_file=rows_per_file,
        )

    def delete(self, where: str) -> None:
        self.head.delete(where)

    def update(self, where: str) -> None:
        self.head.update({"x": "-x"}, where)

    def compact(self, rows: int, **options) -> None:
        self.head.optimize.compact_files(target_rows_per_fragment=rows, **options)

    def fragments(self, version: int | None = None) -> list[FragmentMetadata]:
        return [f.metadata for f in lance.dataset(self.path, version=version).get_fragments()]

    def ids_in(self, fragment: FragmentMetadata) -> np.ndarray:
        """All physical rows, including deleted rows."""
        file = next(file for file in fragment.files if 0 in file.fields)
        return (
            LanceFileReader(f"{self.path}/data/{file.path}", columns=["id"])
            .read_all()
            .to_table()["id"]
            .to_numpy()
        )

    def places(self, version: int) -> dict[int, tuple[int, int]]:
        """Fragment and offset of each live id at a version."""
        rows = lance.dataset(self.path, version=version).to_table(
            columns=["id"], with_row_address=True
        )
        addresses = rows["_rowaddr"].to_pylist()
        return {
            i: (a >> 32, a & 0xFFFFFFFF)
            for i, a in zip(rows["id"].to_pylist(), addresses, strict=True)
        }


def check(table: LineageTable, after: int, upto: int | None = None) -> int:
    """Follows every row back, and returns the number of rows that a compaction moved."""
    upto = upto or table.version
    lineage = Lineage(table.head, after, upto)
    assert lineage.complete
    before = table.places(after)
    fragment_ids = {fragment.id for fragment in table.fragments(after)}
    followed = 0
    for fragment in table.fragments(upto):
        pieces = lineage.origins(fragment.id)
        assert pieces is not None
        assert bool(pieces) == (fragment.id in lineage.compacted)
        if fragment.id in fragment_ids:
            assert pieces == [], "it is its own origin"
        if not pieces:
            assert lineage.leaves(fragment.id) == []
            continue
        ids = table.ids_in(fragment)
        assert [pieces[0].start, *(p.stop for p in pieces)] == [
            *(p.start for p in pieces),
            fragment.physical_rows,
        ]
        assert {p.fragment.id for p in pieces} <= {
            leaf.fragment.id for leaf in lineage.leaves(fragment.id) or ()
        }
        for piece in pieces:
            assert piece.offsets.dtype == np.int64
            own = ids[piece.start : piece.stop]
            assert table.ids_in(piece.fragment)[piece.offsets].tolist() == own.tolist()
            if piece.fragment.id in fragment_ids:
                assert [before[i] for i in own.tolist()] == [
                    (piece.fragment.id, o) for o in piece.offsets.tolist()
                ]
                followed += len(own)
            else:
                assert not {piece.fragment.id} & lineage.compacted
    return followed


def test_rows_are_followed_through_one_compaction(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    table.compact(1000)
    assert check(table, 1) == 100
    (new,) = table.fragments()
    pieces = Lineage(table.head, 1, table.version).origins(new.id)
    assert pieces is not None
    assert [(p.fragment.id, p.start, len(p.offsets)) for p in pieces] == [
        (i, i * 20, 20) for i in range(5)
    ]


def test_a_lineage_of_many_small_fragments_is_not_sent_to_tasks(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LineageTable(path, stable=True)
    table.compact(1000)
    facts = Lineage(table.head, 1, table.version).facts
    monkeypatch.setattr("lance_spark.commit.conflicts.row_lineage._FACTS_OF_TASKS", 6)
    assert facts.for_tasks is facts
    monkeypatch.setattr("lance_spark.commit.conflicts.row_lineage._FACTS_OF_TASKS", 5)
    assert facts.for_tasks is None, "one compacted fragment has the metadata of five old fragments"


def test_rows_deleted_before_are_left_out(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    table.delete("id % 3 = 0 and id < 70")
    table.compact(1000)
    assert check(table, 1) == check(table, 2) == 76
    (new,) = table.fragments()
    pieces = Lineage(table.head, 1, table.version).origins(new.id)
    assert pieces is not None and pieces[0].offsets.tolist() == [i for i in range(20) if i % 3]
    assert pieces[0].fragment.deletion_file is not None, (
        "the fragment is told as it was when it was compacted"
    )


def test_many_deleted_rows_of_one_fragment_are_left_out(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable, rows=40_000, rows_per_file=20_000)
    table.delete("id % 2 = 0 and id < 30000")
    table.compact(100_000)
    assert "bitmap" in str(table.fragments(2)[0].deletion_file)
    assert check(table, 1) == 25_000


def test_rows_are_followed_through_several_rounds_with_deletions_between(
    path: str, stable: bool
) -> None:
    table = LineageTable(path, stable=stable)
    table.delete("id % 7 = 0")
    table.compact(40)
    middle = table.version
    table.append(30)
    table.delete("id % 5 = 0")
    table.compact(1000)
    table.append(5)
    table.delete("id = 13 or id = 131")
    table.compact(1000)
    live_before = {i for i in range(100) if i % 7 and i % 5 and i != 13}
    assert check(table, 1) == len(live_before)
    assert check(table, middle) == len(live_before)
    assert check(table, 1, middle) == len([i for i in range(100) if i % 7])
    assert check(table, table.version) == 0


def test_one_task_may_make_several_fragments(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable, rows=100, rows_per_file=9)
    table.delete("id in (3, 4, 40, 41, 42)")
    table.compact(35, max_rows_per_group=7)
    assert len(table.fragments()) > 1
    assert check(table, 1) == 95


def test_fragments_that_were_not_compacted_are_their_own_origin(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    tasks = Compaction.plan(table.head, {"target_rows_per_fragment": 40}).tasks
    assert len(tasks) > 1
    Compaction.commit(table.head, [tasks[1].execute(table.head)])
    assert check(table, 1) == 60
    assert {0, 1} <= {fragment.id for fragment in table.fragments()}
    lineage = Lineage(table.head, 1, table.version)
    assert lineage.origins(0) == [] and lineage.leaves(0) == []
    assert lineage.origins(999) == []


def test_rows_that_an_update_moved_end_at_the_fragment_it_made(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    table.update("id between 10 and 14")
    moved_to = max(fragment.id for fragment in table.fragments())
    lineage = Lineage(table.head, 1, table.version)
    assert lineage.origins(moved_to) == [] and moved_to not in {
        fragment.id for fragment in table.fragments(1)
    }
    table.compact(1000)
    assert check(table, 1) == 95
    (new,) = table.fragments()
    pieces = Lineage(table.head, 1, table.version).origins(new.id)
    assert pieces is not None
    (last,) = [piece for piece in pieces if piece.fragment.id == moved_to]
    assert sorted(table.ids_in(last.fragment)[last.offsets].tolist()) == [10, 11, 12, 13, 14]


def test_a_restore_takes_compactions_back(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    table.compact(1000)
    compacted = table.version
    lance.dataset(path, version=1).restore()
    assert check(table, 1) == 0
    assert Lineage(table.head, 1, table.version).compacted == frozenset()
    lance.dataset(path, version=compacted).restore()
    assert check(table, 1) == 100
    assert Lineage(table.head, compacted + 1, table.version).compacted == frozenset(), (
        "it was before the start"
    )


def test_a_recreated_table_has_no_lineage_from_the_old_one(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    table.compact(1000)
    lance.write_dataset(
        pa.table({"id": range(8), "x": range(8)}), path, mode="overwrite", max_rows_per_file=4
    )
    lineage = Lineage(table.head, 1, table.version)
    assert lineage.compacted == frozenset() and lineage.complete
    table.compact(1000)
    lineage = Lineage(table.head, 1, table.version)
    (new,) = table.fragments()
    assert len({leaf.fragment.id for leaf in lineage.leaves(new.id) or ()}) == 2


def clean(table: LineageTable) -> None:
    table.head.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


def test_lineage_before_a_lost_transaction_is_unknown(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    table.delete("id = 5")
    table.compact(40)
    clean(table)
    kept_version = table.version
    table.append(30)
    table.compact(1000)
    lineage = Lineage(table.head, 1, table.version)
    assert not lineage.complete
    (new,) = table.fragments()
    assert lineage.origins(new.id) is None and lineage.leaves(new.id) is None
    assert lineage.origins(0) is None
    assert check(table, kept_version) == 99, "from the oldest kept version on all is known"


def test_a_tagged_snapshot_tells_what_was_there_before_the_loss(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    tasks = Compaction.plan(table.head, {"target_rows_per_fragment": 40}).tasks
    results = [task.execute(table.head) for task in tasks[:2]]
    table.head.tags.create("snapshot", 1)
    Compaction.commit(table.head, results[:1])
    Compaction.commit(table.head, results[1:])
    table.head.cleanup_old_versions(
        older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )
    first, second = sorted(fragment.id for fragment in table.fragments() if fragment.id > 4)
    lineage = Lineage(table.head, 1, table.version)
    assert not lineage.complete
    assert lineage.origins(first) is None, "it came out of a compaction that nobody knows"
    assert lineage.origins(4) == [], "it was there before"
    # The transaction of the head itself is always known, and its sources existed before.
    pieces = lineage.origins(second)
    assert pieces is not None and {piece.fragment.id for piece in pieces} == {2, 3, 4}


def test_deletions_of_a_lost_version_are_not_guessed(path: str, stable: bool, caplog) -> None:
    table = LineageTable(path, stable=stable)
    table.delete("id = 5")
    table.compact(40)
    before = table.version - 1
    clean(table)
    lineage = Lineage(table.head, before, table.version)
    assert lineage.complete, "the only transaction on the way is there"
    first, second = table.fragments()[:2]
    assert lineage.origins(first.id) is None
    assert f"Version {before} of" in caplog.text
    pieces = lineage.origins(second.id)
    assert pieces is not None and [len(piece.offsets) for piece in pieces] == [20, 20], (
        "without deletions nothing need be read"
    )


actions = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 25), st.integers(3, 30)),
    st.tuples(st.just("delete"), st.integers(2, 9), st.integers(0, 8)),
    st.tuples(st.just("update"), st.integers(5, 15), st.integers(0, 8)),
    st.tuples(st.just("compact"), st.sampled_from([15, 40, 90]), st.booleans()),
)


@given(
    stable=st.booleans(),
    happened=st.lists(actions, min_size=2, max_size=6),
    since=st.integers(1, 4),
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_rows_are_followed_through_random_changes(
    tmp_path_factory, stable: bool, happened, since: int
) -> None:
    table = LineageTable(
        str(tmp_path_factory.mktemp("t") / "t.lance"), stable=stable, rows=60, rows_per_file=13
    )
    for action, first, second in [*happened, ("compact", 200, True)]:
        if action == "append":
            table.append(first, second)
        elif action == "delete":
            table.delete(f"id % {first} = {second % first}")
        elif action == "update":
            table.update(f"id % {first} = {second % first}")
        else:
            table.compact(first, materialize_deletions=second, materialize_deletions_threshold=0.05)
    for after in {1, min(since, table.version)}:
        check(table, after)


def test_a_version_with_other_deletions_than_the_transaction_names_is_not_believed(
    path: str, stable: bool, monkeypatch
) -> None:
    table = LineageTable(path, stable=stable)
    table.delete("id = 5")
    table.compact(1000)
    lineage = Lineage(table.head, 1, table.version)
    (new,) = table.fragments()
    assert lineage.origins(new.id) is not None
    monkeypatch.setattr(Lineage, "_at", lambda self, version: lance.dataset(path, version=1))
    assert lineage.origins(new.id) is None


def test_rows_are_followed_on_a_branch(path: str, stable: bool) -> None:
    table = LineageTable(path, stable=stable)
    branch = table.head.create_branch("work")
    start = branch.version
    branch.delete("id % 9 = 0")
    branch.optimize.compact_files(target_rows_per_fragment=1000)
    branch = table.head.checkout_version(("work", None))
    table.delete("id % 2 = 0")
    (new,) = branch.get_fragments()
    pieces = Lineage(branch, start, branch.version).origins(new.fragment_id)
    assert pieces is not None
    assert [i for p in pieces for i in (p.offsets + p.fragment.id * 20).tolist()] == [
        i for i in range(100) if i % 9
    ]
