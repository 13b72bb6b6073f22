"""Values of other writers: `rows_stale` counts values with inputs changed afterwards, and `stale=True` recomputes
exactly these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

from lance_spark import BackfillJobResult, BackfillPlan, Table
from lance_spark.backfill.reuse.computed_rows import LOAD_VERSION
from tests.lance_spark.write.backfills import Backfill
from tests.support.inline_jobs import CUT, InlineLab

pytestmark = pytest.mark.sample(1, tests=5)

ROWS = 40
CHANGED = [3, 17]


def make(lab: InlineLab) -> Table:
    data = pa.table({"id": range(ROWS), "x": range(ROWS), "y": range(ROWS)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=True)
    table = lab.table()
    table.add_columns({"v": lab.times_ten()})
    return table


def run(table: Table, **settings: Any) -> BackfillJobResult:
    result = table.backfill("v", **{**CUT, **settings})
    assert result.status == "DONE"
    return result


def clean_up(uri: str, **more: Any) -> None:
    """Removes all versions but the latest, which changes no row."""
    lance.dataset(uri).update_config({"any": "thing"})
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), **more)


def rewrite(uri: str, **columns: dict[int, int]) -> None:
    """Writes columns of some rows in place."""
    ids = next(iter(columns.values()))
    source = pa.table(
        {"id": list(ids), **{name: list(cells.values()) for name, cells in columns.items()}}
    )
    lance.dataset(uri).merge_insert("id").when_matched_update_all().write_mode(
        "rewrite_columns"
    ).execute(source)


def write_dataframe(uri: str) -> None:
    rows = lance.dataset(uri).scanner(columns=["id"], with_row_address=True).to_table().to_pylist()
    Backfill(uri, "v", LongType()).run([(row["_rowaddr"], -1 - row["id"]) for row in rows])


def rewrite_target(uri: str) -> None:
    rewrite(uri, v={i: -1 - i for i in range(ROWS)})


def update_target(uri: str) -> None:
    lance.dataset(uri).update({"v": "-1 - id"})


def merge_rows(uri: str) -> None:
    """Replaces all rows, with other inputs and values."""
    cells = pa.array(range(ROWS), pa.int64())
    negative = pa.array([-1 - i for i in range(ROWS)], pa.int64())
    source = pa.table(
        {"id": cells, "x": pa.array(range(500, 500 + ROWS), pa.int64()), "y": cells, "v": negative}
    )
    lance.dataset(uri).merge_insert("id").when_matched_update_all().execute(source)


def update_inputs(uri: str) -> None:
    lance.dataset(uri).update({"x": "x + 1000"}, where=f"id IN ({CHANGED[0]}, {CHANGED[1]})")


def rewrite_inputs(uri: str) -> None:
    rewrite(uri, x={i: i + 1000 for i in CHANGED})


def planned(table: Table, **more: Any) -> BackfillPlan:
    plan = table.plan_backfill("v", **more)
    assert isinstance(plan, BackfillPlan)
    return plan


def check_stale(lab: InlineLab, table: Table, expected: list[int]) -> None:
    """Asserts the count of rows in plan and result, and that `stale=True` calls the UDF exactly for these rows."""
    before = {row["id"]: row["v"] for row in lance.dataset(lab.uri).to_table().to_pylist()}
    plan = planned(table)
    assert (plan.rows_stale, plan.rows_unverified, plan.total_rows_pending) == (len(expected), 0, 0)
    assert planned(table, stale=True).total_rows_pending == len(expected)
    plain = run(table)
    assert (plain.rows_stale, plain.rows_unverified, plain.rows_computed) == (len(expected), 0, 0)
    lab.calls()
    result = run(table, stale=True)
    rows = {row["id"]: row for row in lance.dataset(lab.uri).to_table().to_pylist()}
    assert lab.calls() == sorted(rows[i]["x"] for i in expected)
    assert (result.rows_stale, planned(table).rows_stale) == (0, 0)
    assert {i: row["v"] for i, row in rows.items()} == before | {
        i: rows[i]["x"] * 10 for i in expected
    }


@pytest.mark.sample(12)
@pytest.mark.parametrize("change", [update_inputs, rewrite_inputs])
@pytest.mark.parametrize("give", [write_dataframe, rewrite_target, update_target, merge_rows])
@pytest.mark.parametrize("filled", [True, False], ids=["filled", "empty"])
def test_a_value_of_another_writer_is_out_of_date_from_a_later_change_of_its_inputs_on(
    filled: bool, give: Callable[[str], None], change: Callable[[str], None], lab: InlineLab
):
    table = make(lab)
    if filled:
        run(table)
    give(lab.uri)
    assert planned(table).rows_stale == 0
    lance.dataset(lab.uri).optimize.compact_files(materialize_deletions_threshold=0.0)
    change(lab.uri)
    check_stale(lab, table, CHANGED)


def test_a_value_that_is_written_together_with_its_inputs_is_up_to_date(lab: InlineLab):
    table = make(lab)
    run(table)
    rewrite(lab.uri, x={3: 1003, 17: 1017, 25: 1025}, v={3: -3, 17: -17, 25: -25})
    lance.dataset(lab.uri).update({"x": "x + 1000"}, where="id = 17")
    check_stale(lab, table, [17])


def test_an_input_that_is_set_back_leaves_values_up_to_date_and_a_restore_too(lab: InlineLab):
    table = make(lab)
    write_dataframe(lab.uri)
    version = lance.dataset(lab.uri).version
    rewrite_inputs(lab.uri)
    rewrite(lab.uri, x={3: 3})
    check_stale(lab, table, [17])
    update_inputs(lab.uri)
    lance.dataset(lab.uri, version=version).restore()
    check_stale(lab, table, [])


def test_appended_values_are_up_to_date_after_a_cleanup_until_their_inputs_change(lab: InlineLab):
    table = make(lab)
    write_dataframe(lab.uri)
    clean_up(lab.uri)
    check_stale(lab, table, [])
    rewrite_inputs(lab.uri)
    check_stale(lab, table, CHANGED)


def test_values_of_others_are_recorded_in_the_append_of_the_job(lab: InlineLab):
    table = make(lab)
    rewrite(lab.uri, v={i: -1 - i for i in range(10)})
    run(table)
    records = lance.dataset(f"{lab.uri}/_lance_spark/records.lance")
    assert records.version == 2  # after its creation
    assert set(records.to_table()["fragment_id"].to_pylist()) == {0, 1, 2, 3}
    run(table)
    assert lance.dataset(records.uri).version == 2


def test_a_version_of_a_load_is_told_from_the_version_of_a_udf():
    assert re.fullmatch(LOAD_VERSION, "0123456789abcdef0123456789abcdef-carry")
    assert not re.fullmatch(LOAD_VERSION, "1-null")


def test_a_job_with_a_concurrent_backfill_counts_rows_outdated_by_an_update(lab: InlineLab):
    """If a cleanup removed the history, the result reports the rows as unverified."""
    table = make(lab)

    def act() -> None:
        other_table = lab.table()
        other_table.backfill("v", **CUT)
        other_table.to_lance().update({"x": "x + 1000"}, where="id < 8")
        clean_up(lab.uri)

    lab.at(5, act)
    result = run(table, commit_granularity=None)
    assert (result.rows_stale, result.rows_unverified) == (8, 8)
    assert "perhaps" in planned(table).explain()
    lab.calls()
    assert run(table, stale=True).rows_stale == 0
    assert lab.calls() == [1000 + i for i in range(8)]


def test_a_job_without_its_snapshot_computes_rows_outdated_by_the_remaining_history(lab: InlineLab):
    table = make(lab)

    def act() -> None:
        other_table = lab.table()
        other_table.backfill("v", **CUT)
        version = lance.dataset(lab.uri).version
        lance.dataset(lab.uri).tags.create("kept", version)
        update_inputs(lab.uri)
        clean_up(lab.uri, error_if_tagged_old_versions=False)

    lab.at(5, act)
    result = run(table, commit_granularity=None)
    assert (result.rows_stale, result.rows_unverified) == (0, 0)
    rows = lance.dataset(lab.uri).to_table().to_pylist()
    assert [row for row in rows if row["v"] != row["x"] * 10] == []
