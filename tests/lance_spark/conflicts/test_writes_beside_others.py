"""Backfills by a DataFrame write beside changes that leave rows where they are, or move them: their values go with them."""

from __future__ import annotations

import lance
import pytest
from pyspark.sql.types import LongType

from tests.lance_spark.conflicts.jobs import slipping_in
from tests.lance_spark.conflicts.others import (
    IN_ROUNDS,
    STEP,
    Act,
    append,
    cast_input,
    change_columns,
    change_settings,
    clean_up,
    column,
    compact,
    compact_and_update,
    compact_deferred,
    compact_in_rounds,
    delete_fragment,
    delete_rows,
    insert_only,
    name_of,
    one_after_another,
    rename_target,
    restore_kept,
    restore_past,
    restore_there_and_back,
    rewrite,
    rewrite_input,
    rewrite_other,
    rewrite_target,
    settings_are_there,
    update_input,
    update_other,
    upsert,
    work_of_others,
)
from tests.lance_spark.conflicts.writes import EXISTING, EXISTING_IN_SHORT, MOMENTS, When, make, old, ours, write_while
from tests.lance_spark.write.backfills import Backfill, computed, snapshot_rows

MOVED = (5, 6, 10, 25, 35)
CHANGED = (5, 25, 35)


@pytest.mark.parametrize(
    ("act", "when", "stable", "exclusive", "is_new"),
    [
        (append, "before", True, False, False),
        (append, "slipped", False, True, True),
        (insert_only, "before", False, True, True),
        (insert_only, "slipped", True, False, False),
    ],
    ids=["append", "append-slipped", "insert_only", "insert_only-slipped"],
)
def test_new_rows_are_null_and_counted(
    act: Act, when: When, stable: bool, exclusive: bool, is_new: bool, path: str
) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, act, when, exclusive=exclusive)
    if when == "before":
        assert written.counted("new_rows", "rows_gone", "rows_carried") == {
            "new_rows": 2,
            "rows_gone": 0,
            "rows_carried": 0,
        }
    written.check({1000: None, 1001: None})


@pytest.mark.parametrize(
    ("when", "stable", "exclusive", "is_new"),
    [("before", False, False, False), ("slipped", True, True, True)],
    ids=["before-addresses", "slipped-new"],
)
@pytest.mark.parametrize("act", [change_columns, change_settings, rewrite_other, restore_kept], ids=name_of)
def test_what_is_no_input_may_change(
    act: Act, when: When, stable: bool, exclusive: bool, is_new: bool, path: str
) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, act, when, exclusive=exclusive)
    assert written.counted("new_rows", "rows_gone") == {"new_rows": 0, "rows_gone": 0}
    written.check()
    assert act is not change_settings or settings_are_there(path)


def test_the_target_may_be_renamed_in_the_moment_of_the_commit(path: str) -> None:
    make(path, indexed=True)
    write_while(path, rename_target, "slipped").check(name="w")
    assert lance.dataset(path).schema.names == ["id", "x", "y", "w"]


def test_a_target_that_was_renamed_before_the_read_is_written_under_its_name(path: str) -> None:
    make(path, indexed=True)
    rename_target(path)
    Backfill(path, "w", LongType()).run(computed(snapshot_rows(path, key="x"), ours))
    assert column(path, "w") == {i: ours(i) for i in range(40)}


@EXISTING_IN_SHORT
def test_a_restore_of_the_column_as_it_was_changes_nothing(
    when: When, stable: bool, exclusive: bool, path: str
) -> None:
    make(path, stable=stable, indexed=True)
    write_while(path, restore_there_and_back, when, exclusive=exclusive).check()


def test_a_restore_of_a_version_with_the_fragments_leaves_room_for_a_new_column(path: str) -> None:
    make(path, is_new=True)
    lance.dataset(path).add_columns({"late": "y"})
    write_while(path, restore_past, "before").check()


@MOMENTS
def test_deleted_rows_stay_deleted(when: When, stable: bool, exclusive: bool, is_new: bool, path: str) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, delete_rows, when, exclusive=exclusive)
    assert set(written.theirs) == set(range(40)) - {3, 4, 21, 35}
    if when == "before":
        assert written.counted("rows_gone", "new_rows", "rows") == {"rows_gone": 4, "new_rows": 0, "rows": 36}
    written.check()


@MOMENTS
def test_a_deleted_fragment_stays_deleted(when: When, stable: bool, exclusive: bool, is_new: bool, path: str) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, delete_fragment, when, exclusive=exclusive)
    assert written.counted("rows_gone", "rows") == {"rows_gone": 10, "rows": 30}
    assert written.result is not None and written.result.fragments_gone == (3,)
    written.check()


def test_deleted_rows_stay_deleted_where_the_commit_has_to_be_built_anew(path: str) -> None:
    make(path, indexed=True)
    acts = [
        one_after_another(delete_rows, lambda uri: lance.dataset(uri).add_columns({"late": "y"})),
        one_after_another(lambda uri: lance.dataset(uri).delete("id = 17"), lambda uri: rewrite(uri, "v", {8: -8})),
    ]
    with slipping_in(path, acts[1]):
        written = write_while(path, acts[0], "slipped")
    written.theirs = {i: row for i, row in written.theirs.items() if i != 17}
    written.check()


# Rows that move


@MOMENTS
def test_rows_that_an_update_moved(when: When, stable: bool, exclusive: bool, is_new: bool, path: str) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, update_other, when, exclusive=exclusive)
    assert written.counted("rows_carried", "rows_nulled", "rows_gone") == {
        "rows_carried": 5 if stable else 0,
        "rows_nulled": 0,
        "rows_gone": 0 if stable else 5,
    }
    written.check({} if stable else {i: None if is_new else old(i) for i in MOVED})


@MOMENTS
def test_rows_whose_input_an_update_changed(when: When, stable: bool, exclusive: bool, is_new: bool, path: str) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, update_input, when, exclusive=exclusive)
    assert written.counted("rows_carried", "rows_nulled", "rows_gone") == {
        "rows_carried": 0,
        "rows_nulled": 3 if stable else 0,
        "rows_gone": 0 if stable else 3,
    }
    written.check({i: None if is_new or stable else old(i) for i in CHANGED})


@MOMENTS
def test_an_upsert(when: When, stable: bool, exclusive: bool, is_new: bool, path: str) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, upsert, when, exclusive=exclusive)
    if stable:
        expected = {"rows_carried": 2, "rows_nulled": 2, "rows_gone": 0, "new_rows": 1}
        assert written.counted(*expected) == expected
        written.check({5: None, 25: None, 1000: None})
    else:
        assert written.counted("rows_carried", "rows_nulled", "rows_gone") == {
            "rows_carried": 0,
            "rows_nulled": 0,
            "rows_gone": 4,
        }
        written.check({1000: None, **{i: None if is_new else old(i) for i in (5, 6, 25, 36)}})


@pytest.mark.parametrize("when", ["before", "slipped"])
def test_a_value_that_the_other_writer_gave_with_a_new_input_is_kept(when: When, path: str) -> None:
    make(path, indexed=True)

    def act(uri: str) -> None:
        lance.dataset(uri).update({"x": f"x + {STEP}", "v": "-777"}, where="id IN (5, 35)")
        lance.dataset(uri).update({"x": f"x + {STEP}"}, where="id = 25")

    written = write_while(path, act, when)
    assert written.counted("rows_nulled") == {"rows_nulled": 1}
    written.check({5: -777, 35: -777, 25: None})


@MOMENTS
def test_compaction_moves_the_values_too(when: When, stable: bool, exclusive: bool, is_new: bool, path: str) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, compact, when, exclusive=exclusive)
    expected = {"rows_carried": 40, "rows_gone": 0, "rows_nulled": 0, "new_rows": 0}
    assert written.counted(*expected) == expected
    written.check()


@MOMENTS
def test_compactions_in_rounds_with_deletions(
    when: When, stable: bool, exclusive: bool, is_new: bool, path: str
) -> None:
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, compact_in_rounds, when, exclusive=exclusive)
    assert written.counted("rows_carried", "rows_gone") == {"rows_carried": 33, "rows_gone": 7}
    assert set(written.theirs) == set(range(40)) - IN_ROUNDS
    written.check()


@pytest.mark.parametrize(("when", "is_new"), [("before", False), ("slipped", True)])
def test_a_compaction_that_defers_the_remapping_of_indexes(when: When, is_new: bool, path: str) -> None:
    make(path, stable=False, is_new=is_new, indexed=True)
    written = write_while(path, compact_deferred, when)
    assert written.counted("rows_carried") == {"rows_carried": 40}
    written.check()


@pytest.mark.parametrize(("when", "stable"), [("before", True), ("slipped", False)])
def test_rows_that_were_not_written_keep_their_value_through_a_compaction(when: When, stable: bool, path: str) -> None:
    make(path, stable=stable, indexed=True)
    written = write_while(path, compact, when, exclusive=False, rows=lambda x: x % 3 == 0)
    assert written.counted("rows_carried", "rows") == {"rows_carried": 14, "rows": 14}
    written.check({i: old(i) for i in range(40) if i % 3}, rows=14)


@pytest.mark.parametrize("when", ["before", "slipped"])
def test_compactions_and_updates_in_turn(when: When, path: str) -> None:
    make(path, indexed=True)
    written = write_while(path, compact_and_update, when)
    assert written.counted("rows_carried", "rows_nulled") == {"rows_carried": 37, "rows_nulled": 3}
    written.check(dict.fromkeys(CHANGED))


# Columns that are written in place


@MOMENTS
def test_an_input_that_is_written_in_place(when: When, stable: bool, exclusive: bool, is_new: bool, path: str) -> None:
    """Two rows differ and get no value; two others were written with what they had."""
    make(path, stable=stable, is_new=is_new, indexed=True)
    written = write_while(path, rewrite_input, when, exclusive=exclusive)
    assert written.counted("rows_nulled", "rows_gone", "rows") == {"rows_nulled": 2, "rows_gone": 0, "rows": 38}
    written.check({5: None, 35: None})


@EXISTING
def test_the_target_that_is_written_in_place_gets_our_values(
    when: When, stable: bool, exclusive: bool, path: str
) -> None:
    make(path, stable=stable, indexed=True)
    write_while(path, rewrite_target, when, exclusive=exclusive).check()


@EXISTING
def test_values_that_others_gave_rows_that_were_not_written_are_kept(
    when: When, stable: bool, exclusive: bool, path: str
) -> None:
    make(path, stable=stable, indexed=True)
    # Both of their rows' fragments are written, and one of the rows.
    written = write_while(path, rewrite_target, when, exclusive=False, rows=lambda x: x < 7 or x > 37)
    theirs = {i: old(i) for i in range(7, 38)} | {35: -35}
    written.check(theirs, rows=9)


@pytest.mark.parametrize("stable", [True, False])
def test_an_input_is_written_in_place_and_all_rows_are_moved(stable: bool, path: str) -> None:
    make(path, stable=stable, indexed=True)
    written = write_while(path, one_after_another(rewrite_input, compact), "slipped")
    assert written.counted("rows_nulled", "rows_carried") == {"rows_nulled": 2, "rows_carried": 38}
    written.check({5: None, 35: None})


@EXISTING
def test_the_last_of_two_writes_of_a_column_wins(when: When, stable: bool, exclusive: bool, path: str) -> None:
    make(path, stable=stable, indexed=True)
    rows = snapshot_rows(path, key="x")

    def other(uri: str) -> None:
        Backfill(uri, "v", LongType()).run(computed(rows, lambda x: x + 7))

    write_while(path, other, when, exclusive=exclusive).check()


@EXISTING_IN_SHORT
def test_writes_of_two_columns_both_complete(when: When, stable: bool, exclusive: bool, path: str) -> None:
    make(path, stable=stable)
    written = write_while(
        path,
        lambda uri: Backfill(uri, "w", LongType()).run(computed(snapshot_rows(uri, key="x"), lambda x: x + 7)),
        when,
        exclusive=exclusive,
    )
    assert column(path) == {i: ours(i) for i in range(40)}
    assert column(path, "w") == {i: i + 7 for i in range(40)}
    assert work_of_others(path) == written.theirs


# Cleanup


@EXISTING
def test_a_cleanup_of_the_snapshot(when: When, stable: bool, exclusive: bool, path: str) -> None:
    make(path, stable=stable, indexed=True)
    write_while(path, clean_up, when, exclusive=exclusive).check()


@pytest.mark.parametrize(
    "act",
    [
        one_after_another(delete_rows, clean_up),
        one_after_another(append, change_columns, clean_up),
        one_after_another(rewrite_other, append, clean_up),
    ],
    ids=["delete", "append", "in place"],
)
def test_a_cleanup_where_no_row_that_was_written_can_have_moved(act: Act, path: str) -> None:
    make(path, indexed=True)
    written = write_while(path, act, "before")
    written.check(dict.fromkeys(written.theirs.keys() - set(range(40))))


def test_a_fragment_that_a_restore_brings_back_is_none_of_the_writes(path: str) -> None:
    """Without stable row ids nothing tells where its rows were, and nothing has to."""
    make(path, stable=False)
    before = lance.dataset(path).version
    delete_fragment(path)
    there = [i for i in range(40) if not 30 <= i < 40]

    def act(uri: str) -> None:
        lance.dataset(uri).delete("id = 3")
        lance.dataset(uri, version=before).restore()
        lance.dataset(uri).delete("id = 4")

    written = write_while(path, act, "before")
    values = column(path)
    assert values == {i: ours(i) if i in there else old(i) for i in range(40) if i != 4}
    assert written.counted("rows", "rows_gone") == {"rows": 29, "rows_gone": 1}


# Inputs that are cast


@pytest.mark.parametrize("stable", [True, False])
def test_an_input_that_is_cast_counts_as_changed(stable: bool, path: str) -> None:
    make(path, stable=stable, indexed=True)
    written = write_while(path, one_after_another(rewrite_input, cast_input), "before")
    assert written.counted("rows_nulled", "rows") == {"rows_nulled": 40, "rows": 0}
    written.check(dict.fromkeys(range(40)))


def test_an_input_that_is_dropped_leaves_the_values_that_were_computed_from_it(path: str) -> None:
    make(path, indexed=True)
    write_while(path, lambda uri: lance.dataset(uri).drop_columns(["x"]), "before")
    assert column(path) == {i: ours(i) for i in range(40)}
