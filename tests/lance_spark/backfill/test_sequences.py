"""Successive backfills with changes between them: the rows of UDF calls, for scalars and record batches."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lance_spark import Connection, Table
from tests.support.logs import Log, doubled, flag_file, make, values
from udf_runtime import Skip

pytestmark = pytest.mark.sample(1, tests=5)

kinds = pytest.mark.parametrize("kind", ["scalar", "record batch"])


def prepared(db: Connection, log: Log, kind: str) -> Table:
    """Makes a table of forty rows in four fragments, with a computed column of either kind."""
    table = make(db)
    table.add_columns({"y": log.doubling() if kind == "scalar" else log.batch_doubling()})
    return table


@pytest.mark.sample(2)
@pytest.mark.guarantee("S01")
@kinds
def test_a_compaction_after_a_backfill_causes_no_calls(db: Connection, log: Log, kind: str) -> None:
    table = prepared(db, log, kind)
    table.backfill("y")
    assert log.take() == list(range(40))
    assert table.to_lance().optimize.compact_files().fragments_removed == 4
    assert table.backfill("y").versions == ()
    assert log.take() == []
    assert values(table) == doubled(range(40))


@pytest.mark.guarantee("S02")
@kinds
def test_a_compaction_amid_a_partial_backfill_causes_calls_for_the_rest(
    db: Connection, log: Log, kind: str
) -> None:
    table = prepared(db, log, kind)
    table.backfill("y", num_frags=2)
    assert log.take() == list(range(20))
    assert table.to_lance().optimize.compact_files().fragments_added == 1
    table.backfill("y")
    assert log.take() == list(range(20, 40))
    assert values(table) == doubled(range(40))


@pytest.mark.sample(2)
@pytest.mark.guarantee("S03")
@kinds
def test_appended_rows_alone_are_computed(db: Connection, log: Log, kind: str) -> None:
    table = prepared(db, log, kind)
    table.backfill("y")
    log.take()
    table.add(pa.table({"x": list(range(40, 45))}))
    table.backfill("y")
    assert log.take() == list(range(40, 45))
    assert values(table) == doubled(range(45))


@pytest.mark.guarantee("S04")
@kinds
def test_another_column_amid_a_partial_backfill_causes_calls_for_the_rest(
    db: Connection, log: Log, kind: str
) -> None:
    table = prepared(db, log, kind)
    table.backfill("y", num_frags=2)
    log.take()
    table.add_columns({"other": "x + 1"})
    table.backfill("y")
    assert log.take() == list(range(20, 40))
    assert values(table) == doubled(range(40))


@pytest.mark.sample(2)
@pytest.mark.guarantee("S05")
@kinds
def test_another_udf_computes_all_rows_once(db: Connection, log: Log, kind: str) -> None:
    table = prepared(db, log, kind)
    table.backfill("y")
    log.take()
    other_udf = log.doubling(version="2") if kind == "scalar" else log.batch_doubling(version="2")
    table.alter_columns({"path": "y", "udf": other_udf})
    counts = []
    for _ in range(3):
        table.backfill("y")
        counts.append(len(log.take()))
    assert counts == [40, 0, 0]


@pytest.mark.sample(2)
@pytest.mark.guarantee("S06")
@kinds
def test_an_updated_input_is_left_to_a_filter(db: Connection, log: Log, kind: str) -> None:
    """The default selection is rows without a value, and an update keeps the old value of a row. A filter recomputes
    such rows.
    """
    table = prepared(db, log, kind)
    table.backfill("y")
    log.take()
    table.to_lance().update({"x": "1007"}, where="x = 7")
    table.backfill("y")
    assert log.take() == []
    table.backfill("y", where="x = 1007")
    assert log.take() == [1007]
    assert values(table)[1007] == 2014


@pytest.mark.guarantee("S07", "F08")
def test_skipped_rows_are_computed_when_the_cause_is_gone(
    db: Connection, log: Log, flag: str
) -> None:
    table = make(db)
    table.add_columns({"y": log.breaking(13, flag, on_error=[Skip(ValueError)])})
    with flag_file(flag):
        assert table.backfill("y").rows_skipped == 1
        log.take()
        assert table.backfill("y").rows_skipped == 1
        assert log.take() == [13]
    assert values(table)[13] is None
    table.backfill("y")
    assert log.take() == [13]
    assert values(table) == doubled(range(40))


@pytest.mark.guarantee("S07")
def test_so_are_rows_of_batches_that_were_halved(db: Connection, log: Log, flag: str) -> None:
    path = log.path

    def double(batch: pa.RecordBatch) -> pa.Array:
        import os

        rows = batch.column("x").to_pylist()
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"{x}\n" for x in rows))
        if 13 in rows and os.path.exists(flag):
            raise ValueError("13")
        return pa.array([2 * x for x in rows], pa.int64())

    from udf_runtime import udf

    table = make(db)
    table.add_columns(
        {
            "y": udf(
                double, data_type=pa.int64(), on_error=[Skip(ValueError)], min_checkpoint_size=10
            )
        }
    )
    with flag_file(flag):
        assert table.backfill("y").rows_skipped == 1
    log.take()
    table.backfill("y")
    assert log.take() == [13]
    assert values(table) == doubled(range(40))
