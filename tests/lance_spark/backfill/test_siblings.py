"""Siblings are written together: a call for a row writes all of them."""

from __future__ import annotations

from typing import NamedTuple

import lance
import pyarrow as pa
import pytest

from lance_spark import Table
from tests.support.inline_jobs import (
    CUT,
    InlineLab,
    values,
)
from tests.support.waiting import eventually
from udf_runtime import Columns, udf

pytestmark = pytest.mark.sample(1, tests=2)

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


class Parts(NamedTuple):
    a: int
    b: int


def make_siblings(lab: InlineLab) -> Table:
    """A table of two fragments of ten rows, with columns `a` and `b` of one UDF."""

    called = lab.called()

    def parts(x: int) -> Columns[Parts]:
        called(x)
        return Parts(x * 2, x * 3)

    data = pa.table({"id": range(20), "x": range(20)})
    lance.write_dataset(data, lab.uri, max_rows_per_file=10, enable_stable_row_ids=True)
    table = lab.table()
    table.add_columns(udf(parts, version="1", name="parts"))
    return table


def siblings(uri: str) -> dict[int, tuple[int | None, ...]]:
    rows = lance.dataset(uri).to_table().to_pylist()
    return {row["id"]: (row["x"], row["a"], row["b"]) for row in rows}


def rewrite(uri: str, column: str, values: dict[int, int]) -> None:
    source = pa.table(
        {"id": pa.array(values, pa.int64()), column: pa.array(values.values(), pa.int64())}
    )
    lance.dataset(uri).merge_insert("id").when_matched_update_all().write_mode(
        "rewrite_columns"
    ).execute(source)


@pytest.mark.parametrize("granularity", [1, None], ids=["committed", "staged"])
def test_a_row_that_lacks_a_sibling_or_whose_inputs_changed_gets_all_of_them(
    granularity: int | None, lab: InlineLab
) -> None:
    table = make_siblings(lab)

    def act() -> None:
        if granularity:
            eventually(lambda: lance.dataset(lab.uri).count_rows("a IS NOT NULL") >= 10)
        lance.dataset(lab.uri).update({"x": "x + 1000", "a": "-777"}, where="id = 3")
        lance.dataset(lab.uri).update({"a": "-888"}, where="id = 4")
        rewrite(lab.uri, "b", {15: -999})

    lab.at(15, act)
    result = table.backfill("a", **CUT, commit_granularity=granularity)
    assert (result.status, result.rows_recomputed, len(lab.calls())) == ("DONE", 1, 21)
    expected = {x: (x, 2 * x, 3 * x) for x in range(20)}
    # A concurrent writer's value stays in a complete row; row 15 lacked the other sibling.
    kept_values = {4: (4, -888, 12)} if granularity else {}
    assert siblings(lab.uri) == {**expected, **kept_values, 3: (1003, 2006, 3009)}


def test_siblings_that_had_values_before_a_job_are_replaced_together(lab: InlineLab) -> None:
    table = make_siblings(lab)
    rewrite(lab.uri, "b", dict.fromkeys(range(20), 5))
    lab.at(15, lambda: lance.dataset(lab.uri).update({"x": "x + 1000"}, where="id IN (3, 13)"))
    assert table.backfill("a", **CUT).status == "DONE"
    expected = {x: (x, 2 * x, 3 * x) for x in range(20)}
    assert siblings(lab.uri) == {**expected, 3: (1003, 2006, 3009), 13: (1013, 2026, 3039)}


def test_a_sibling_that_another_writer_wrote_in_place_is_out_of_date_after_a_change_of_its_inputs(
    lab: InlineLab,
) -> None:
    table = make_siblings(lab)
    table.backfill("a", **CUT)
    rewrite(lab.uri, "b", {1: -1, 2: -2})
    assert table.plan_backfill("a", stale=True).total_rows_pending == 0
    rewrite(lab.uri, "x", {2: 1002})
    lab.calls()
    assert table.backfill("a", stale=True, **CUT).status == "DONE"
    expected = {x: (x, 2 * x, 3 * x) for x in range(20)}
    assert siblings(lab.uri) == {**expected, 1: (1, 2, -1), 2: (1002, 2004, 3006)}
    assert len(lab.calls()) == 1


class Pair(NamedTuple):
    x: int
    y: int


def test_siblings_that_swapped_their_names_get_their_own_values_again(lab: InlineLab):
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
