"""Values that are served, assembled and carried over are those of the right row, column, input and run."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest

import lance_spark
from lance_spark.backfill.driver.group_commit import GroupCommits
from tests.lance_spark.backfill.review.lab import Death, Lab, opposite, values
from udf_runtime import Columns, udf
from udf_runtime.checkpoint import CheckpointStore

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def die(*_: object) -> None:
    raise Death


@pytest.mark.parametrize("task_size", [1000, 10], ids=["one range", "four ranges"])
def test_what_a_filter_computes_anew_is_what_the_table_has_then(task_size: int, lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v", task_size=task_size)
    lab.switch.write_text("1000")
    assert table.backfill("v", where="1=1", task_size=task_size).rows_computed == ROWS
    assert values(table, "v") == {i: (i + 1000,) for i in range(ROWS)}


def test_checkpoints_of_compacted_rows_do_not_serve_inputs_that_were_rewritten_since(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(pa.table({"id": range(ROWS), "a": range(ROWS)}), rows_per_file=10)
    table.add_columns({"v": (lab.udf(), ["a"])})
    with monkeypatch.context() as patch:
        patch.setattr(GroupCommits, "commit", die)
        with pytest.raises(Death):
            table.backfill("v")
    table.to_lance().optimize.compact_files()
    lab.rewrite("a", pa.array([i + 500 for i in range(ROWS)]))
    lab.calls()
    table.backfill("v")
    assert values(table, "v") == {i: (i + 500,) for i in range(ROWS)}
    assert lab.calls() == [i + 500 for i in range(ROWS)]


def test_rows_that_another_udf_filled_after_a_compaction_count_as_its_own(lab: Lab):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": opposite(pa.int64())})
    table.alter_columns({"path": "v", "udf": lab.udf()})
    table.backfill("v")
    table.to_lance().optimize.compact_files()
    lab.rewrite("v", pa.array([-i for i in range(ROWS)]))
    lab.calls()
    table.backfill("v")
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}


def test_a_checkpoint_that_vanishes_while_it_is_read_leaves_no_row_without_a_value(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf(bad=frozenset({39}))})
    with pytest.raises(lance_spark.BackfillIncompleteError):
        table.backfill(
            "v",
            task_size=1000,
            checkpoint_size=10,
            min_checkpoint_size=10,
            batch_checkpoint_flush_interval_seconds=0,
        )
    lab.switch.write_text("0")
    read, seen = CheckpointStore.read, set()

    def read_once(self, entry, key, source):
        gone = entry.path in seen
        seen.add(entry.path)
        return None if gone else read(self, entry, key, source)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "read", read_once)
        with pytest.raises(lance_spark.BackfillIncompleteError, match="somebody deletes checkpoints"):
            table.backfill("v", task_size=1000)
    assert table.backfill("v").status == "DONE"
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}


class Pair(NamedTuple):
    x: int
    y: int


def test_siblings_that_swapped_their_names_get_their_own_values_again(lab: Lab):
    table = lab.make(IDS)

    def g(id: int) -> Columns[Pair]:
        return Pair(id, -id)

    table.add_columns(udf(g, version="1"))
    table.backfill("x")
    for old, new in (("x", "z"), ("y", "x"), ("z", "y")):
        table.alter_columns({"path": old, "name": new})
    swapped = {i: (-i, i) for i in range(ROWS)}
    assert values(table, "x", "y") == swapped
    lab.rewrite("y", pa.nulls(ROWS, pa.int64()))
    result = table.backfill("y")
    assert values(table, "x", "y") == swapped
    assert (result.rows_computed, result.rows_from_checkpoint) == (0, ROWS), (
        "the first file has them, under other names"
    )


def test_a_stored_udf_that_the_column_has_no_more_is_refused_before_it_is_called(lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    version = table.version
    table.alter_columns({"path": "v", "udf": opposite(pa.int64())})
    with pytest.raises(lance_spark.CommitImpossibleError, match="another UDF since version"):
        table.backfill("v", read_version=version)
    assert lab.calls() == []


def test_a_column_that_got_the_id_of_a_dropped_input_is_not_read_in_its_place(lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.add_columns({"b": "id * 10"})
    table.alter_columns({"path": "v", "udf": lab.udf().with_input_columns(["b"])})
    table.alter_columns({"path": "b", "name": "c"})
    table.backfill("v", num_frags=1)
    assert values(table, "v") == {i: (i * 10,) for i in range(ROWS)}, "a renamed input is the same one"
    table.drop_columns("c")
    table.add_columns({"d": "id * 777"})
    with pytest.raises(lance_spark.RegistrationError, match="input columns are gone"):
        table.backfill("v", where="1=1")


def test_values_that_somebody_wrote_over_ours_in_place_count_as_out_of_date(lab: Lab):
    table = lab.make(IDS, rows_per_file=20)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    lab.rewrite("v", pa.array([-i for i in range(20)]))
    plan = table.plan_backfill("v")
    assert (plan.rows_stale, plan.total_rows_pending) == (20, 0)
    assert table.plan_backfill("v", stale=True).total_rows_pending == 20
    assert table.backfill("v").rows_stale == 20
    assert table.backfill("v", stale=True).rows_stale == 0
    assert table.plan_backfill("v").rows_stale == 0
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
