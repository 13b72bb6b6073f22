"""A job fills its columns from the inputs of its UDF, although columns were renamed or got new field ids."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark.errors import CommitImpossibleError, UnsupportedTypeError
from tests.support.inline_jobs import (
    CUT,
    InlineLab,
    opposite,
    values,
)
from udf_runtime import UdfDefinitionError, udf

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def test_a_stored_udf_that_the_column_has_no_more_is_refused_before_it_is_called(lab: InlineLab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    version = table.version
    table.alter_columns({"path": "v", "udf": opposite(pa.int64())})
    with pytest.raises(lance_spark.CommitImpossibleError, match="another UDF since version"):
        table.backfill("v", read_version=version)
    assert lab.calls() == []


def test_a_column_that_got_the_id_of_a_dropped_input_is_not_read_in_its_place(lab: InlineLab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.add_columns({"b": "id * 10"})
    table.alter_columns({"path": "v", "udf": lab.udf().with_input_columns(["b"])})
    table.alter_columns({"path": "b", "name": "c"})
    table.backfill("v", num_frags=1)
    assert values(table, "v") == {i: (i * 10,) for i in range(ROWS)}, (
        "a renamed input is the same one"
    )
    table.drop_columns("c")
    table.add_columns({"d": "id * 777"})
    with pytest.raises(lance_spark.RegistrationError, match="Input columns are gone"):
        table.backfill("v", where="1=1")


@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
def test_a_column_that_got_the_field_id_of_a_dropped_input_is_not_read_in_its_place(
    compacted: bool, lab: InlineLab
) -> None:
    lance.write_dataset(
        pa.table({"id": range(ROWS)}), lab.uri, max_rows_per_file=10, enable_stable_row_ids=True
    )
    table = lab.table()

    def first(id: int) -> int:
        return id

    table.add_columns({"v": udf(first, data_type=pa.int64(), version="0")})
    lance.dataset(lab.uri).add_columns({"x": "id + 0"})
    table.alter_columns({"path": "v", "udf": lab.times_ten()})

    def act() -> None:
        lance.dataset(lab.uri).drop_columns(["x"])
        if compacted:
            lance.dataset(lab.uri).optimize.compact_files()
        lance.dataset(lab.uri).add_columns({"z": "id * 7"})

    lab.at(15, act)
    with pytest.raises(CommitImpossibleError, match="input column 'x' was dropped"):
        table.backfill("v", **CUT)
    calls = lab.calls()
    assert set(calls) <= set(range(ROWS)) and len(calls) <= ROWS


@pytest.mark.parametrize(
    "kind", [pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])]
)
def test_a_column_is_not_dropped_for_a_udf_whose_type_lance_does_not_have(
    kind: pa.DataType, lab: InlineLab
):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    with pytest.raises((UnsupportedTypeError, UdfDefinitionError)):
        table.alter_columns({"path": "v", "udf": opposite(kind), "recreate": True})
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}
