"""Waiting until indexes serve all rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import lance
import pytest

from lance_spark import IndexTimeoutError, Table
from lance_spark.indexes.upkeep import wait_for_index
from tests.lance_spark.indexes.conftest import ROWS, create, rows

Opened = Callable[..., Table]


def test_an_index_that_serves_all_rows_is_not_waited_for(opened: Opened):
    table = opened()
    create(table, "BTREE")
    table.wait_for_index("ix", timedelta(0))
    table.wait_for_index([])


@pytest.mark.guarantee("I03")
def test_indexes_that_others_make_and_optimize_are_waited_for(opened: Opened, table_path: str):
    table = opened()
    create(table, "BTREE")
    lance.write_dataset(rows(ROWS, 10, 4), table_path, mode="append")
    clock, acts = [0.0], [lambda: create(table, "BITMAP", name="later"), table.optimize_indices]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 1 and acts:
            acts.pop(0)()

    wait_for_index(table._latest, ["ix", "later"], 60, clock=lambda: clock[0], sleep=sleep)
    assert not acts and table.index_stats("ix").num_unindexed_rows == 0


@pytest.mark.guarantee("I03")
def test_the_wait_ends_and_says_what_is_missing(opened: Opened, table_path: str):
    table = opened()
    create(table, "BTREE")
    lance.write_dataset(rows(ROWS, 10, 4), table_path, mode="append")
    with pytest.raises(
        IndexTimeoutError, match=r"'ix' lacks 10 rows; 'no' does not exist.*optimize_indices"
    ) as raised:
        table.wait_for_index(["ix", "no"], timedelta(seconds=0.01))
    assert isinstance(raised.value, TimeoutError)
