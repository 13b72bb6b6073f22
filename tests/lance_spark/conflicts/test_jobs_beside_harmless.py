"""Jobs beside changes that leave every value where it belongs: new rows, other columns, settings, deletions, and restores."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import lance
import pytest
from pyspark.sql.types import LongType

from tests.lance_spark.conflicts.jobs import (
    ALL,
    MOMENTS_IN_SHORT,
    Lab,
    When,
    counting_udf,
    filled,
)
from tests.lance_spark.conflicts.others import (
    Act,
    append,
    change_columns,
    change_settings,
    column,
    delete_fragment,
    delete_rows,
    insert_only,
    name_of,
    one_after_another,
    rename_target,
    restore_kept,
    restore_there_and_back,
    settings_are_there,
)
from tests.lance_spark.write.backfills import Backfill, computed, snapshot_rows
from tests.support.waiting import eventually

NEW = {1000: None, 1001: None}


@MOMENTS_IN_SHORT
def test_rows_that_are_appended_are_null_and_counted(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(append, when)
    if when != "slipped":
        assert seen.counted("new_rows", "rows_carried", "rows_gone") == {
            "new_rows": 2,
            "rows_carried": 0,
            "rows_gone": 0,
        }
    lab.check(seen, values=NEW, again=[1000, 1001])


@MOMENTS_IN_SHORT
def test_rows_of_an_insert_only_merge_are_null_and_counted(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(insert_only, when)
    if when != "slipped":
        assert seen.counted("new_rows", "rows_recomputed") == {"new_rows": 2, "rows_recomputed": 0}
    lab.check(seen, values=NEW, again=[1000, 1001])


@MOMENTS_IN_SHORT
def test_other_columns_indexes_tags_and_settings_may_change(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(one_after_another(change_settings, change_columns), when)
    assert lance.dataset(lab.uri).schema.names == ["id", "renamed_x", "v", "total", "empty"]
    lab.check(seen)
    assert settings_are_there(lab.uri)


@MOMENTS_IN_SHORT
def test_the_target_may_be_renamed(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(rename_target, when)
    assert lance.dataset(lab.uri).schema.names == ["id", "x", "y", "w"]
    lab.check(seen, column_name="w")


@pytest.mark.parametrize("made", [True, False], ids=["made", "dropped"])
def test_the_index_of_the_target_may_be_made_and_dropped(made: bool, lab: Lab):
    lab.table(indexed=not made)

    def act(uri: str) -> None:
        if made:
            lance.dataset(uri).create_scalar_index("v", "BTREE", name="of v")
        else:
            lance.dataset(uri).drop_index("of v")

    lab.check(lab.run_while(act, "between"))
    assert {index.name for index in lance.dataset(lab.uri).describe_indices()} == ({"of v"} if made else set())


@MOMENTS_IN_SHORT
def test_deleted_rows_stay_deleted(when: When, stable: bool, indexed: bool, lab: Lab):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(delete_rows, when)
    if when != "slipped":
        assert seen.counted("rows_gone", "new_rows", "rows_carried") == {
            "rows_gone": 4,
            "new_rows": 0,
            "rows_carried": 0,
        }
    assert set(seen.theirs) == set(range(40)) - {3, 4, 21, 35}
    lab.check(seen)


@MOMENTS_IN_SHORT
def test_a_deleted_fragment_stays_deleted_and_takes_nothing_else_with_it(
    when: When, stable: bool, indexed: bool, lab: Lab
):
    lab.table(stable=stable, indexed=indexed)
    seen = lab.run_while(delete_fragment, when)
    assert seen.counted("rows_gone", "new_rows") == {"rows_gone": 10, "new_rows": 0}
    lab.check(seen)


def test_deleted_rows_stay_deleted_where_the_commit_has_to_be_built_anew(lab: Lab):
    """A commit that pylance refuses because of an added column is built for a head with other deletions."""
    lab.table(indexed=True)

    def act(uri: str) -> None:
        delete_rows(uri)
        lance.dataset(uri).add_columns({"late": "y"})
        lance.dataset(uri).delete("id = 17")

    seen = lab.run_while(act, "slipped")
    assert set(seen.theirs) == set(range(40)) - {3, 4, 17, 21, 35}
    assert seen.result.rows_gone == 5
    lab.check(seen)


@pytest.mark.parametrize("act", [restore_kept, restore_there_and_back], ids=name_of)
@pytest.mark.parametrize(("when", "stable"), [("between", False), ("slipped", True)])
def test_a_restore_that_leaves_the_fragments_changes_nothing(act: Act, when: When, stable: bool, lab: Lab):
    lab.table(stable=stable, indexed=True)
    seen = lab.run_while(act, when)
    assert seen.counted("new_rows", "rows_gone") == {"new_rows": 0, "rows_gone": 0}
    lab.check(seen)


def test_values_that_a_restore_takes_back_come_again_without_a_call(lab: Lab):
    """Two of four fragments were committed, and the version before these commits is restored: the others are committed all the same."""
    snapshot = lab.table().version

    def act(uri: str) -> None:
        lance.dataset(uri, version=snapshot).restore()

    seen = lab.run_while(act, "between")
    assert filled(lab.uri) >= {2, 3}
    assert lab.calls() == ALL
    lab.run()
    lab.check(seen, calls={})


@pytest.mark.parametrize("stable", [True, False])
def test_backfills_of_two_columns_at_once_both_complete(stable: bool, lab: Lab):
    table = lab.table(stable=stable, indexed=True)
    other_home = lab.home / "other"
    other_home.mkdir()
    table.add_columns({"w": (counting_udf(str(other_home), name="other", factor=3), ["y"])})
    with lab.held([6]):
        one = lab.start("v", commit_granularity=1)
        lab.wait_for([6], one)
        other = lab.start("w", commit_granularity=1)
        eventually((other_home / "calls").exists)
    assert (one.result(60).status, other.result(60).status) == ("DONE", "DONE")
    assert lab.calls() == ALL
    assert Counter(map(int, (other_home / "calls").read_text().split())) == ALL
    assert column(lab.uri, "w") == {i: None if i % 7 == 3 else i * 3 for i in range(40)}
    assert column(lab.uri, "v") == {i: None if i % 7 == 3 else i * 10 for i in range(40)}
    lab.run("v")
    lab.run("w")
    assert lab.calls() == Counter()
    assert len((other_home / "calls").read_text().split()) == 40


def test_a_job_beside_the_whole_backfill_of_another_column(lab: Lab):
    table = lab.table()
    table.add_columns({"w": (counting_udf(str(lab.home), name="other", factor=3), ["id"])})
    seen = lab.run_while(lambda _: Backfill(lab.uri, "w", LongType()).run(computed(snapshot_rows(lab.uri))), "between")
    assert column(lab.uri, "w") == {i: i * 10 for i in range(40)}
    lab.check(seen)


def test_a_snapshot_is_protected_by_a_tag_where_that_is_asked_for(lab: Lab):
    lab.table()
    tags: list[set[str]] = []

    def act(uri: str) -> None:
        append(uri)
        tags.append(set(lance.dataset(uri).tags.list()))
        with pytest.raises(OSError, match="tag"):
            lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0))

    seen = lab.run_while(act, "before", protect_snapshot=True)
    assert len(tags[0]) == 1
    assert lance.dataset(lab.uri).tags.list() == {}, "the job's tag outlives it"
    lab.check(seen, values=NEW, again=[1000, 1001])
