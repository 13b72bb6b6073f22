"""Which fragments a job has to look at again: the decision itself, on made-up manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance import LanceOperation
from lance.fragment import DataFile, DeletionFile, FragmentMetadata

from lance_spark.commit.conflicts.coverage import Coverage, Covered
from lance_spark.commit.conflicts.history import Change, Event
from lance_spark.commit.conflicts.identity import fragment_identity
from lance_spark.commit.conflicts.row_lineage import Leaf, Lineage

INPUT, TARGET, OTHER = 1, 2, 3
ROWS = 10


def fragment(
    number: int, *, rows: int = ROWS, deleted: int = 0, version: str = "", files: Mapping[int, str] | None = None
) -> FragmentMetadata:
    """Returns a fragment with a file per field; `version` makes the input's file another one."""
    names = {OTHER: f"other-{number}", INPUT: f"input-{number}{version}", **(files or {})}
    deletion = DeletionFile(1, number, "array", deleted, None) if deleted else None
    made = [DataFile(f"{name}.lance", [column], [0], 2, 1, 100) for column, name in names.items()]
    return FragmentMetadata(id=number, files=made, physical_rows=rows, deletion_file=deletion)


@dataclass(kw_only=True)
class FakeLineage:
    """Says what it is told to say."""

    way: dict[int, list[Leaf] | None] = field(default_factory=dict)
    updates: dict[int, frozenset[int]] = field(default_factory=dict)
    replaced: bool = False
    complete: bool = True

    @property
    def compacted(self) -> frozenset[int]:
        return frozenset(number for number, leaves in self.way.items() if leaves)

    def leaves(self, fragment_id: int) -> list[Leaf] | None:
        return self.way.get(fragment_id, [])

    def moved_from(self, one: FragmentMetadata) -> frozenset[int] | None:
        return self.updates.get(one.id)

    def is_added(self, one: FragmentMetadata) -> bool:
        return self.updates.get(one.id) == frozenset()


def coverage(done: Mapping[int, bool], others: Iterable[int] = ()) -> Coverage:
    """Returns a coverage of fragments, each done or not."""
    covered = {
        n: Covered(identity=fragment_identity(fragment(n), [INPUT]), done=is_done) for n, is_done in done.items()
    }
    return Coverage(version=1, covered=covered, others=frozenset(others))


def look(before: Coverage, now: Sequence[FragmentMetadata], **lineage: Any) -> Coverage:
    told: Any = FakeLineage(**lineage)
    return before.look(2, now, told, [INPUT])


def seen(found: Coverage) -> dict[int, str]:
    """Returns what was said of each fragment."""
    said = dict.fromkeys(found.others, "other") | dict.fromkeys(found.new, "new")
    for number, one in found.covered.items():
        assert one.done == (number not in found.open)
        said[number] = "done" if one.done else "open"
    assert found.version == 2
    assert set(found.open) <= set(found.covered)
    assert set(found.new) <= found.others
    return said


# The same fragment


@pytest.mark.parametrize("done", [True, False])
def test_a_fragment_that_stayed_as_it_was_is_what_it_was(done: bool) -> None:
    assert seen(look(coverage({0: done}), [fragment(0)])) == {0: "done" if done else "open"}


@pytest.mark.parametrize("done", [True, False])
def test_deletions_and_files_of_other_columns_change_nothing(done: bool) -> None:
    now = fragment(0, deleted=3, files={OTHER: "rewritten", TARGET: "ours"})
    assert seen(look(coverage({0: done}), [now])) == {0: "done" if done else "open"}


@pytest.mark.parametrize("done", [True, False])
def test_a_fragment_whose_input_was_rewritten_in_place_is_open(done: bool) -> None:
    assert seen(look(coverage({0: done}), [fragment(0, version="-b")])) == {0: "open"}


def test_an_overlay_over_an_input_counts_as_a_rewrite() -> None:
    now = fragment(0)
    file = DataFile("overlay.lance", [INPUT], [0], 2, 1, 100)
    now.overlays.append(LanceOperation.DataOverlayFile(file, [0]))
    assert seen(look(coverage({0: True}), [now])) == {0: "open"}


def test_a_fragment_that_is_gone_is_nowhere() -> None:
    found = look(coverage({0: True, 1: False}), [])
    assert (found.open, found.new, found.covered, found.others) == ((), frozenset(), {}, frozenset())


@pytest.mark.parametrize("done", [True, False])
def test_after_a_restore_one_file_in_common_tells_that_it_is_the_same_fragment(done: bool) -> None:
    state = "done" if done else "open"
    assert seen(look(coverage({0: done}), [fragment(0)], replaced=True)) == {0: state}
    some = fragment(0, files={OTHER: "rewritten"})
    assert seen(look(coverage({0: done}), [some], replaced=True)) == {0: state}


@pytest.mark.parametrize("done", [True, False])
def test_after_a_restore_another_fragment_of_the_same_id_is_open(done: bool) -> None:
    other = fragment(0, files={OTHER: "of somebody", INPUT: "of somebody else"})
    assert seen(look(coverage({0: done}), [other], replaced=True)) == {0: "open"}


def test_after_a_restore_another_fragment_is_open_also_where_there_is_no_input() -> None:
    told: Any = FakeLineage(replaced=True)
    before = Coverage(
        version=1, covered={0: Covered(identity=fragment_identity(fragment(0), []), done=True)}, others=frozenset()
    )
    assert seen(before.look(2, [fragment(0, files={OTHER: "a", INPUT: "b"})], told, [])) == {0: "open"}
    assert seen(before.look(2, [fragment(0, version="-b")], told, [])) == {0: "done"}


def test_a_fragment_of_the_same_id_and_another_size_is_never_the_same() -> None:
    for replaced in (True, False):
        assert seen(look(coverage({0: True}), [fragment(0, rows=ROWS + 1)], replaced=replaced)) == {0: "open"}


# Fragments that the job does not cover


def test_other_fragments_stay_what_they_are_whatever_happens_to_them() -> None:
    now = [fragment(1, version="-b", deleted=2)]
    assert seen(look(coverage({0: True}, [1]), now, updates={1: frozenset([0])})) == {1: "other"}


def test_an_appended_fragment_is_new_only_once() -> None:
    first = look(coverage({0: True}, [1]), [fragment(0), fragment(1), fragment(2)])
    assert seen(first) == {0: "done", 1: "other", 2: "new"}
    told: Any = FakeLineage()
    assert first.look(3, [fragment(0), fragment(2)], told, [INPUT]).new == frozenset()


def test_after_a_restore_an_id_of_another_fragment_may_be_that_of_an_update() -> None:
    updates = {1: frozenset([0])}
    assert seen(look(coverage({0: True}, [1]), [fragment(1)], replaced=True, updates=updates)) == {1: "open"}
    assert seen(look(coverage({0: True}, [1]), [fragment(1)], replaced=True)) == {1: "other"}


# Updates that rewrite rows


def test_a_fragment_that_an_update_made_is_open() -> None:
    found = look(
        coverage({0: True, 1: True}), [fragment(0, deleted=2), fragment(2, rows=2)], updates={2: frozenset([0])}
    )
    assert seen(found) == {0: "done", 2: "open"}


# Compactions


def leaf(old: FragmentMetadata, *way: FragmentMetadata) -> Leaf:
    return Leaf(fragment=old, way=way)


@pytest.mark.parametrize(
    ("done", "others", "state"),
    [
        ({0: True, 1: True}, (), "done"),
        ({0: True, 1: False}, (), "open"),
        ({0: False, 1: False}, (), "open"),
        ({0: True}, (1,), "done"),
        ({0: False}, (1,), "open"),
        ({}, (0, 1), "other"),
    ],
)
def test_a_compacted_fragment_is_what_all_of_its_covered_rows_are(
    done: dict[int, bool], others: tuple[int, ...], state: str
) -> None:
    made = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), made), leaf(fragment(1), made)]}
    assert seen(look(coverage(done, others), [made], way=way)) == {5: state}


def test_rows_that_were_rewritten_before_they_were_compacted_are_open() -> None:
    made = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0, version="-b"), made), leaf(fragment(1), made)]}
    assert seen(look(coverage({0: True, 1: True}), [made], way=way)) == {5: "open"}


def test_rows_that_were_rewritten_after_they_were_compacted_are_open() -> None:
    made = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), made), leaf(fragment(1), made)]}
    now = fragment(5, rows=2 * ROWS, version="-b")
    assert seen(look(coverage({0: True, 1: True}), [now], way=way)) == {5: "open"}


def test_rows_that_were_rewritten_between_two_compactions_are_open() -> None:
    first, found, last = fragment(5), fragment(5, version="-b"), fragment(6)
    now = [fragment(6)]
    assert seen(look(coverage({0: True}), now, way={6: [leaf(fragment(0), first, found, last)]})) == {6: "open"}
    assert seen(look(coverage({0: True}), now, way={6: [leaf(fragment(0), first, first, last)]})) == {6: "done"}


def test_rows_that_an_update_moved_before_they_were_compacted_are_open() -> None:
    made = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), made), leaf(fragment(2), made)]}
    updates = {2: frozenset([0])}
    assert seen(look(coverage({0: True}), [made], way=way, updates=updates)) == {5: "open"}
    # What an update did to fragments that the job's snapshot had already is no news.
    assert seen(look(coverage({0: True}, [2]), [made], way=way, updates=updates)) == {5: "done"}


def test_rows_that_were_appended_before_they_were_compacted_do_not_matter() -> None:
    made = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), made), leaf(fragment(2), made)]}
    assert seen(look(coverage({0: True}), [made], way=way)) == {5: "done"}
    assert seen(look(coverage({0: False}), [made], way=way)) == {5: "open"}


def test_a_compaction_of_appended_rows_alone_is_new() -> None:
    made = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(2), made), leaf(fragment(3), made)]}
    assert seen(look(coverage({0: True}), [fragment(0), made], way=way)) == {0: "done", 5: "new"}


def test_a_compaction_of_rows_that_the_job_does_not_cover_is_not_new() -> None:
    made = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(1), made), leaf(fragment(2), made)]}
    assert seen(look(coverage({0: True}, [1, 2]), [fragment(0), made], way=way)) == {0: "done", 5: "other"}


# Lineage that was cleaned up


@pytest.mark.parametrize("others", [(), (7,)])
def test_a_fragment_of_unknown_making_is_open(others: tuple[int, ...]) -> None:
    found = look(coverage({0: True}, others), [fragment(0), fragment(7)], way={7: None}, complete=False)
    assert seen(found) == {0: "done", 7: "open"}


def test_a_fragment_that_stayed_is_known_without_lineage() -> None:
    assert seen(look(coverage({0: True}), [fragment(0)], way={0: None}, complete=False)) == {0: "done"}


# What is settled, and the target's files

TARGET = 7


def look_at_targets(before: Coverage, *now: FragmentMetadata) -> tuple[int, ...]:
    lineage: Any = FakeLineage()
    return before.look(2, now, lineage, [INPUT], [TARGET]).open


def test_what_was_settled_is_done_and_what_is_not_there_is_ignored() -> None:
    before = coverage({0: False, 1: False}, [2]).settled({0: "a.lance", 2: None, 9: None})
    assert before.covered[0].done and before.covered[0].committed == "a.lance"
    assert not before.covered[1].done and before.others == {2} and set(before.covered) == {0, 1}


def test_a_committed_fragment_is_open_again_where_its_target_has_another_file() -> None:
    before = coverage({0: False}).settled({0: "a.lance"})
    assert look_at_targets(before, fragment(0, files={TARGET: "a"})) == ()
    assert look_at_targets(before, fragment(0, files={TARGET: "b"})) == (0,), "rewritten in place"
    assert look_at_targets(before, fragment(0)) == (0,), "taken back by a restore"


def test_a_fragment_with_nothing_to_do_is_open_again_where_its_target_has_another_file() -> None:
    filled = fragment(0, files={TARGET: "a"})
    covered = {0: Covered(identity=fragment_identity(filled, [INPUT], [TARGET]), done=False)}
    before = Coverage(version=1, covered=covered, others=frozenset()).settled({0: None})
    assert look_at_targets(before, filled) == ()
    assert look_at_targets(before, fragment(0, files={TARGET: "b"})) == (0,)


# Random histories


@dataclass
class Model:
    """A table in which it is known of every row where it is, and what became of it."""

    fragments: dict[int, FragmentMetadata]
    rows: dict[int, list[dict[str, Any]]]
    steps: list[Change] = field(default_factory=list)
    next_id: int = 0
    files: int = 0

    @property
    def version(self) -> int:
        return 1 + len(self.steps)

    def add(self, rows: list[dict[str, Any]]) -> FragmentMetadata:
        self.files += 1
        made = fragment(self.next_id, rows=len(rows), version=f"-{self.files}", files={OTHER: f"o-{self.files}"})
        self.fragments[made.id], self.rows[made.id] = made, rows
        self.next_id += 1
        return made

    def note(self, operation: Any) -> None:
        self.steps.append(Change.of(Event(version=self.version + 1, operation=operation, properties={})))

    def append(self, count: int) -> None:
        self.note(LanceOperation.Append([self.add([{"job": None, "fresh": True} for _ in range(count)])]))

    def compact(self, numbers: list[int]) -> None:
        olds = [self.fragments[number] for number in numbers]
        rows = [row for number in numbers for row in self.rows[number]]
        for number in numbers:
            del self.fragments[number], self.rows[number]
        made = self.add(rows)
        self.note(LanceOperation.Rewrite([LanceOperation.RewriteGroup(olds, [made])], []))

    def update(self, number: int, count: int) -> None:
        """Moves the last rows of a fragment; they may have other inputs by then."""
        old = self.fragments[number]
        moved = self.rows[number][len(self.rows[number]) - count :]
        self.rows[number] = self.rows[number][: len(self.rows[number]) - count]
        deleted = old.num_deletions + count
        left = FragmentMetadata(old.id, old.files, old.physical_rows, DeletionFile(1, old.id, "array", deleted, None))
        gone = [] if self.rows[number] else [number]
        if gone:
            del self.fragments[number], self.rows[number]
        else:
            self.fragments[number] = left
        made = self.add([{**row, "wrong": True} for row in moved])
        self.note(
            LanceOperation.Update(
                removed_fragment_ids=gone, updated_fragments=[] if gone else [left], new_fragments=[made]
            )
        )

    def rewrite(self, number: int) -> None:
        """Writes the inputs of a fragment anew, in place."""
        old = self.fragments[number]
        self.files += 1
        files = [file for file in old.files if INPUT not in file.fields]
        files.append(DataFile(f"again-{self.files}.lance", [INPUT], [0], 2, 1, 100))
        self.fragments[number] = FragmentMetadata(old.id, files, old.physical_rows, old.deletion_file)
        self.rows[number] = [{**row, "wrong": True} for row in self.rows[number]]
        self.note(LanceOperation.BaseOperation())

    def step(self, data: st.DataObject) -> None:
        there = sorted(self.fragments)
        act = data.draw(st.sampled_from(["append", "compact", "update", "rewrite"]))
        if act == "append" or not there:
            self.append(2)
        elif act == "compact":
            first = data.draw(st.integers(0, len(there) - 1))
            self.compact(there[first : first + data.draw(st.integers(1, 3))])
        elif act == "update":
            number = data.draw(st.sampled_from(there))
            self.update(number, data.draw(st.integers(1, len(self.rows[number]))))
        else:
            self.rewrite(data.draw(st.sampled_from(there)))

    def lineage(self, after: int) -> Lineage:
        none: Any = None  # nothing is opened where all transactions are there
        return Lineage(none, after, self.version, self.steps)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_row_that_needs_a_value_is_missed_and_nothing_is_looked_at_in_vain(data: st.DataObject) -> None:
    model = Model({}, {})
    kinds = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=5))
    for kind in kinds:
        model.add([{"job": kind, "wrong": False} for _ in range(3)])
    now = Coverage(
        version=1,
        covered={
            n: Covered(identity=fragment_identity(model.fragments[n], [INPUT]), done=bool(kind))
            for n, kind in enumerate(kinds)
            if kind is not None
        },
        others=frozenset(n for n, kind in enumerate(kinds) if kind is None),
    )
    for _ in range(data.draw(st.integers(1, 3))):
        after = model.version
        for _ in range(data.draw(st.integers(0, 4))):
            model.step(data)
        found = now.look(model.version, model.fragments.values(), model.lineage(after), [INPUT])
        said = seen_at(found)
        for number, rows in model.rows.items():
            covered = [row for row in rows if row["job"] is not None]
            needs = any(not row["job"] or row["wrong"] for row in covered)
            assert not needs or said[number] == "open", f"fragment {number} has rows without a right value"
            # Whether the rows that have gone are those that needed a value is nobody's to know without reading.
            whole = not model.fragments[number].num_deletions
            if whole and covered and not needs and not any(row.get("wrong") for row in rows):
                assert said[number] == "done", f"fragment {number} is looked at in vain"
        # The job does what is open: after that its rows are right.
        now = found.settled(dict.fromkeys(found.open))
        for number in found.open:
            for row in model.rows[number]:
                if row["job"] is not None:
                    row.update(job=True, wrong=False)
                else:
                    row["wrong"] = False


def seen_at(found: Coverage) -> dict[int, str]:
    said = dict.fromkeys(found.others, "other")
    return said | {n: "open" if n in found.open else "done" for n in found.covered}
