"""The decision on fragments that a job must inspect again, on synthetic manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance import LanceOperation
from lance.fragment import DataFile, DeletionFile, FragmentMetadata

from lance_spark.commit.conflicts.history import Change, Event
from lance_spark.commit.conflicts.identity import fragment_identity
from lance_spark.commit.conflicts.row_lineage import Lineage, LineageStep
from lance_spark.commit.conflicts.verdicts import Coverage, Covered

INPUT, TARGET, UNRELATED = 1, 2, 3
ROWS = 10


def fragment(
    number: int,
    *,
    rows: int = ROWS,
    deleted: int = 0,
    version: str = "",
    files: Mapping[int, str] | None = None,
) -> FragmentMetadata:
    """Returns a fragment with a file per field; `version` selects the input's file."""
    names = {UNRELATED: f"other-{number}", INPUT: f"input-{number}{version}", **(files or {})}
    deletion = DeletionFile(1, number, "array", deleted, None) if deleted else None
    data_files = [
        DataFile(f"{name}.lance", [column], [0], 2, 1, 100) for column, name in names.items()
    ]
    return FragmentMetadata(id=number, files=data_files, physical_rows=rows, deletion_file=deletion)


@dataclass(kw_only=True)
class FakeLineage:
    """Gives prepared answers."""

    way: dict[int, list[LineageStep] | None] = field(default_factory=dict)
    updates: dict[int, frozenset[int]] = field(default_factory=dict)
    replaced: bool = False
    complete: bool = True

    @property
    def compacted(self) -> frozenset[int]:
        return frozenset(number for number, leaves in self.way.items() if leaves)

    def leaves(self, fragment_id: int) -> list[LineageStep] | None:
        return self.way.get(fragment_id, [])

    def moved_from(self, fragment_: FragmentMetadata) -> frozenset[int] | None:
        return self.updates.get(fragment_.id)

    def is_added(self, fragment_: FragmentMetadata) -> bool:
        return self.updates.get(fragment_.id) == frozenset()


def coverage(is_done_by_id: Mapping[int, bool], other_ids: Iterable[int] = ()) -> Coverage:
    """Returns a coverage of fragments, each done or not."""
    covered = {
        n: Covered(identity=fragment_identity(fragment(n), [INPUT]), done=is_done)
        for n, is_done in is_done_by_id.items()
    }
    return Coverage(version=1, covered=covered, others=frozenset(other_ids))


def look(before: Coverage, fragments: Sequence[FragmentMetadata], **lineage: Any) -> Coverage:
    fake_lineage: Any = FakeLineage(**lineage)
    return before.look(2, fragments, fake_lineage, [INPUT])


def states_of(result: Coverage) -> dict[int, str]:
    """Returns the state of each fragment."""
    states = dict.fromkeys(result.others, "other") | dict.fromkeys(result.new, "new")
    for number, covered in result.covered.items():
        assert covered.done == (number not in result.open)
        states[number] = "done" if covered.done else "open"
    assert result.version == 2
    assert set(result.open) <= set(result.covered)
    assert set(result.new) <= result.others
    return states


# The same fragment


@pytest.mark.parametrize("is_done", [True, False])
def test_an_unchanged_fragment_keeps_its_state(is_done: bool) -> None:
    assert states_of(look(coverage({0: is_done}), [fragment(0)])) == {
        0: "done" if is_done else "open"
    }


@pytest.mark.parametrize("is_done", [True, False])
def test_deletions_and_files_of_other_columns_change_nothing(is_done: bool) -> None:
    current = fragment(0, deleted=3, files={UNRELATED: "rewritten", TARGET: "ours"})
    assert states_of(look(coverage({0: is_done}), [current])) == {0: "done" if is_done else "open"}


@pytest.mark.parametrize("is_done", [True, False])
def test_a_fragment_whose_input_was_rewritten_in_place_is_open(is_done: bool) -> None:
    assert states_of(look(coverage({0: is_done}), [fragment(0, version="-b")])) == {0: "open"}


def test_an_overlay_over_an_input_counts_as_a_rewrite() -> None:
    current = fragment(0)
    file = DataFile("overlay.lance", [INPUT], [0], 2, 1, 100)
    current.overlays.append(LanceOperation.DataOverlayFile(file, [0]))
    assert states_of(look(coverage({0: True}), [current])) == {0: "open"}


def test_a_fragment_that_is_gone_is_nowhere() -> None:
    result = look(coverage({0: True, 1: False}), [])
    assert (result.open, result.new, result.covered, result.others) == (
        (),
        frozenset(),
        {},
        frozenset(),
    )


@pytest.mark.parametrize("is_done", [True, False])
def test_after_a_restore_one_file_in_common_tells_that_it_is_the_same_fragment(
    is_done: bool,
) -> None:
    state = "done" if is_done else "open"
    assert states_of(look(coverage({0: is_done}), [fragment(0)], replaced=True)) == {0: state}
    some = fragment(0, files={UNRELATED: "rewritten"})
    assert states_of(look(coverage({0: is_done}), [some], replaced=True)) == {0: state}


@pytest.mark.parametrize("is_done", [True, False])
def test_after_a_restore_another_fragment_of_the_same_id_is_open(is_done: bool) -> None:
    successor = fragment(0, files={UNRELATED: "of somebody", INPUT: "of somebody else"})
    assert states_of(look(coverage({0: is_done}), [successor], replaced=True)) == {0: "open"}


def test_after_a_restore_another_fragment_is_open_also_where_there_is_no_input() -> None:
    fake_lineage: Any = FakeLineage(replaced=True)
    before = Coverage(
        version=1,
        covered={0: Covered(identity=fragment_identity(fragment(0), []), done=True)},
        others=frozenset(),
    )
    assert states_of(
        before.look(2, [fragment(0, files={UNRELATED: "a", INPUT: "b"})], fake_lineage, [])
    ) == {0: "open"}
    assert states_of(before.look(2, [fragment(0, version="-b")], fake_lineage, [])) == {0: "done"}


def test_a_fragment_of_the_same_id_and_another_size_is_never_the_same() -> None:
    for replaced in (True, False):
        assert states_of(
            look(coverage({0: True}), [fragment(0, rows=ROWS + 1)], replaced=replaced)
        ) == {0: "open"}


# Fragments without rows of the job


def test_foreign_fragments_keep_their_state_after_any_change() -> None:
    current = [fragment(1, version="-b", deleted=2)]
    assert states_of(look(coverage({0: True}, [1]), current, updates={1: frozenset([0])})) == {
        1: "other"
    }


def test_an_appended_fragment_is_new_only_once() -> None:
    first = look(coverage({0: True}, [1]), [fragment(0), fragment(1), fragment(2)])
    assert states_of(first) == {0: "done", 1: "other", 2: "new"}
    fake_lineage: Any = FakeLineage()
    assert first.look(3, [fragment(0), fragment(2)], fake_lineage, [INPUT]).new == frozenset()


def test_after_a_restore_an_id_of_another_fragment_may_be_that_of_an_update() -> None:
    updates = {1: frozenset([0])}
    assert states_of(
        look(coverage({0: True}, [1]), [fragment(1)], replaced=True, updates=updates)
    ) == {1: "open"}
    assert states_of(look(coverage({0: True}, [1]), [fragment(1)], replaced=True)) == {1: "other"}


# Updates that rewrite rows


def test_a_fragment_that_an_update_made_is_open() -> None:
    result = look(
        coverage({0: True, 1: True}),
        [fragment(0, deleted=2), fragment(2, rows=2)],
        updates={2: frozenset([0])},
    )
    assert states_of(result) == {0: "done", 2: "open"}


# Compactions


def leaf(old: FragmentMetadata, *way: FragmentMetadata) -> LineageStep:
    return LineageStep(fragment=old, way=way)


@pytest.mark.parametrize(
    ("is_done_by_id", "other_ids", "state"),
    [
        ({0: True, 1: True}, (), "done"),
        ({0: True, 1: False}, (), "open"),
        ({0: False, 1: False}, (), "open"),
        ({0: True}, (1,), "done"),
        ({0: False}, (1,), "open"),
        ({}, (0, 1), "other"),
    ],
)
def test_a_compacted_fragment_is_done_only_if_all_covered_rows_are_done(
    is_done_by_id: dict[int, bool], other_ids: tuple[int, ...], state: str
) -> None:
    compacted = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), compacted), leaf(fragment(1), compacted)]}
    assert states_of(look(coverage(is_done_by_id, other_ids), [compacted], way=way)) == {5: state}


def test_rows_that_were_rewritten_before_they_were_compacted_are_open() -> None:
    compacted = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0, version="-b"), compacted), leaf(fragment(1), compacted)]}
    assert states_of(look(coverage({0: True, 1: True}), [compacted], way=way)) == {5: "open"}


def test_rows_that_were_rewritten_after_they_were_compacted_are_open() -> None:
    compacted = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), compacted), leaf(fragment(1), compacted)]}
    rewritten = fragment(5, rows=2 * ROWS, version="-b")
    assert states_of(look(coverage({0: True, 1: True}), [rewritten], way=way)) == {5: "open"}


def test_rows_that_were_rewritten_between_two_compactions_are_open() -> None:
    first, middle, last = fragment(5), fragment(5, version="-b"), fragment(6)
    current = [fragment(6)]
    assert states_of(
        look(coverage({0: True}), current, way={6: [leaf(fragment(0), first, middle, last)]})
    ) == {6: "open"}
    assert states_of(
        look(coverage({0: True}), current, way={6: [leaf(fragment(0), first, first, last)]})
    ) == {6: "done"}


def test_rows_that_an_update_moved_before_they_were_compacted_are_open() -> None:
    compacted = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), compacted), leaf(fragment(2), compacted)]}
    updates = {2: frozenset([0])}
    assert states_of(look(coverage({0: True}), [compacted], way=way, updates=updates)) == {
        5: "open"
    }
    # The job already knows the effect of an update on fragments of its snapshot.
    assert states_of(look(coverage({0: True}, [2]), [compacted], way=way, updates=updates)) == {
        5: "done"
    }


def test_rows_that_were_appended_before_they_were_compacted_do_not_matter() -> None:
    compacted = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(0), compacted), leaf(fragment(2), compacted)]}
    assert states_of(look(coverage({0: True}), [compacted], way=way)) == {5: "done"}
    assert states_of(look(coverage({0: False}), [compacted], way=way)) == {5: "open"}


def test_a_compaction_of_appended_rows_alone_is_new() -> None:
    compacted = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(2), compacted), leaf(fragment(3), compacted)]}
    assert states_of(look(coverage({0: True}), [fragment(0), compacted], way=way)) == {
        0: "done",
        5: "new",
    }


def test_a_compaction_of_rows_that_the_job_does_not_cover_is_not_new() -> None:
    compacted = fragment(5, rows=2 * ROWS)
    way = {5: [leaf(fragment(1), compacted), leaf(fragment(2), compacted)]}
    assert states_of(look(coverage({0: True}, [1, 2]), [fragment(0), compacted], way=way)) == {
        0: "done",
        5: "other",
    }


# Lineage removed by a cleanup


@pytest.mark.parametrize("other_ids", [(), (7,)])
def test_a_fragment_of_unknown_making_is_open(other_ids: tuple[int, ...]) -> None:
    result = look(
        coverage({0: True}, other_ids), [fragment(0), fragment(7)], way={7: None}, complete=False
    )
    assert states_of(result) == {0: "done", 7: "open"}


def test_a_fragment_that_stayed_is_known_without_lineage() -> None:
    assert states_of(look(coverage({0: True}), [fragment(0)], way={0: None}, complete=False)) == {
        0: "done"
    }


# Settled fragments, and the target's files

TARGET = 7


def look_at_targets(before: Coverage, *fragments: FragmentMetadata) -> tuple[int, ...]:
    lineage: Any = FakeLineage()
    return before.look(2, fragments, lineage, [INPUT], [TARGET]).open


def test_settled_fragments_are_done_and_missing_fragments_are_ignored() -> None:
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
    """A table with the place and the history of every row."""

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
        added = fragment(
            self.next_id,
            rows=len(rows),
            version=f"-{self.files}",
            files={UNRELATED: f"o-{self.files}"},
        )
        self.fragments[added.id], self.rows[added.id] = added, rows
        self.next_id += 1
        return added

    def note(self, operation: Any) -> None:
        self.steps.append(
            Change.of(Event(version=self.version + 1, operation=operation, properties={}))
        )

    def append(self, count: int) -> None:
        self.note(
            LanceOperation.Append([self.add([{"job": None, "fresh": True} for _ in range(count)])])
        )

    def compact(self, numbers: list[int]) -> None:
        olds = [self.fragments[number] for number in numbers]
        rows = [row for number in numbers for row in self.rows[number]]
        for number in numbers:
            del self.fragments[number], self.rows[number]
        compacted = self.add(rows)
        self.note(LanceOperation.Rewrite([LanceOperation.RewriteGroup(olds, [compacted])], []))

    def update(self, number: int, count: int) -> None:
        """Moves the last rows of a fragment; they may have other inputs by then."""
        old = self.fragments[number]
        moved_rows = self.rows[number][len(self.rows[number]) - count :]
        self.rows[number] = self.rows[number][: len(self.rows[number]) - count]
        deleted = old.num_deletions + count
        remainder = FragmentMetadata(
            old.id, old.files, old.physical_rows, DeletionFile(1, old.id, "array", deleted, None)
        )
        removed_ids = [] if self.rows[number] else [number]
        if removed_ids:
            del self.fragments[number], self.rows[number]
        else:
            self.fragments[number] = remainder
        successor = self.add([{**row, "wrong": True} for row in moved_rows])
        self.note(
            LanceOperation.Update(
                removed_fragment_ids=removed_ids,
                updated_fragments=[] if removed_ids else [remainder],
                new_fragments=[successor],
            )
        )

    def rewrite(self, number: int) -> None:
        """Rewrites the inputs of a fragment in place."""
        old = self.fragments[number]
        self.files += 1
        files = [file for file in old.files if INPUT not in file.fields]
        files.append(DataFile(f"again-{self.files}.lance", [INPUT], [0], 2, 1, 100))
        self.fragments[number] = FragmentMetadata(
            old.id, files, old.physical_rows, old.deletion_file
        )
        self.rows[number] = [{**row, "wrong": True} for row in self.rows[number]]
        self.note(LanceOperation.BaseOperation())

    def step(self, data: st.DataObject) -> None:
        numbers = sorted(self.fragments)
        act = data.draw(st.sampled_from(["append", "compact", "update", "rewrite"]))
        if act == "append" or not numbers:
            self.append(2)
        elif act == "compact":
            first = data.draw(st.integers(0, len(numbers) - 1))
            self.compact(numbers[first : first + data.draw(st.integers(1, 3))])
        elif act == "update":
            number = data.draw(st.sampled_from(numbers))
            self.update(number, data.draw(st.integers(1, len(self.rows[number]))))
        else:
            self.rewrite(data.draw(st.sampled_from(numbers)))

    def lineage(self, after: int) -> Lineage:
        none: Any = None  # with all transactions given, no version is opened
        return Lineage(none, after, self.version, self.steps)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_every_row_without_a_right_value_is_inspected_and_no_other_fragment(
    data: st.DataObject,
) -> None:
    model = Model({}, {})
    kinds = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=5))
    for kind in kinds:
        model.add([{"job": kind, "wrong": False} for _ in range(3)])
    current = Coverage(
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
        looked = current.look(
            model.version, model.fragments.values(), model.lineage(after), [INPUT]
        )
        states = open_or_done(looked)
        for number, rows in model.rows.items():
            covered = [row for row in rows if row["job"] is not None]
            needs = any(not row["job"] or row["wrong"] for row in covered)
            assert not needs or states[number] == "open", (
                f"fragment {number} has rows without a right value"
            )
            # Without reading, the deleted rows may or may not have needed a value.
            whole = not model.fragments[number].num_deletions
            if whole and covered and not needs and not any(row.get("wrong") for row in rows):
                assert states[number] == "done", f"fragment {number} is looked at in vain"
        # The job computes the open fragments, and then their rows are right.
        current = looked.settled(dict.fromkeys(looked.open))
        for number in looked.open:
            for row in model.rows[number]:
                if row["job"] is not None:
                    row.update(job=True, wrong=False)
                else:
                    row["wrong"] = False


def open_or_done(result: Coverage) -> dict[int, str]:
    states = dict.fromkeys(result.others, "other")
    return states | {n: "open" if n in result.open else "done" for n in result.covered}
