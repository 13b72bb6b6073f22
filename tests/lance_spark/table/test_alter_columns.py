"""`alter_columns` and `drop_columns`: another UDF, name or type, and backfills afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.functions import pandas_udf

from lance_spark import (
    ColumnNotFoundError,
    CommitImpossibleError,
    Connection,
    OptionError,
    RegistrationError,
    Table,
)
from lance_spark.errors import LanceSparkError, SchemaMismatchError
from tests.lance_spark.table.call_log import CallLog
from tests.support.waiting import eventually
from udf_runtime import UDF, Columns, UdfDefinitionError, UdfRuntimeError, udf

pytestmark = pytest.mark.sample(3, tests=3)

ALL = list(range(30))


class Pair(NamedTuple):
    a: int
    b: int


def pair() -> UDF:
    @udf
    def pair(id: int) -> Columns[Pair]:
        return Pair(id, -id)

    return pair


@pytest.fixture
def filled(table: Table, call_log: CallLog) -> Table:
    """The table with a computed column of all rows."""
    table.add_columns({"double": call_log.times(2), "triple": call_log.times(3)})
    table.backfill("double")
    assert call_log.take() == ALL
    return table


def of_type(kind: pa.DataType, function: Callable[[int], object] = str) -> UDF:
    @udf(data_type=kind)
    def another_udf(id: int) -> object:
        return function(id)

    return another_udf


WRONG: dict[str, tuple[Callable[[CallLog], object], type[Exception], str]] = {
    "no dict": (lambda call_log: "double", OptionError, "Option 'alterations'"),
    "no path": (lambda call_log: {"udf": call_log.times(3)}, RegistrationError, "requires path"),
    "an empty path": (
        lambda call_log: {"path": "", "udf": call_log.times(3)},
        RegistrationError,
        "requires path",
    ),
    "the old keyword": (
        lambda call_log: {"path": "double", "virtual_column": 1},
        RegistrationError,
        "virtual_column",
    ),
    "an unknown keyword": (
        lambda call_log: {"path": "double", "udf": call_log.times(3), "x": 1},
        RegistrationError,
        "'x'",
    ),
    "a UDF with a name": (
        lambda call_log: {"path": "double", "udf": call_log.times(3), "name": "n"},
        RegistrationError,
        "cannot alter 'name'",
    ),
    "inputs without a UDF": (
        lambda call_log: {"path": "double", "input_columns": ["id"]},
        RegistrationError,
        "input_columns",
    ),
    "nothing to change": (lambda call_log: {"path": "double"}, RegistrationError, "double"),
    "no UDF": (
        lambda call_log: {"path": "double", "udf": 42},
        RegistrationError,
        "udf must be a UDF",
    ),
    "None as a UDF": (
        lambda call_log: {"path": "double", "udf": None},
        RegistrationError,
        "udf must be a UDF",
    ),
    "a plain function": (
        lambda call_log: {"path": "double", "udf": len},
        RegistrationError,
        "udf must be a UDF",
    ),
    "a column that is not there": (
        lambda call_log: {"path": "nope", "udf": call_log.times(3)},
        ColumnNotFoundError,
        "'nope'",
    ),
    "a rename of what is not there": (
        lambda call_log: {"path": "nope", "name": "n"},
        LanceSparkError,
        "nope",
    ),
    "a name that is taken": (
        lambda call_log: {"path": "double", "name": "text"},
        LanceSparkError,
        "text",
    ),
    "a cast that cannot be": (
        lambda call_log: {"path": "text", "data_type": pa.list_(pa.int64())},
        LanceSparkError,
        "text",
    ),
    "another type": (
        lambda call_log: {"path": "double", "udf": of_type(pa.string())},
        RegistrationError,
        "recreate",
    ),
    "a UDF of several columns": (
        lambda call_log: {"path": "double", "udf": pair()},
        RegistrationError,
        "Drop the columns",
    ),
    "too many inputs": (
        lambda call_log: {
            "path": "double",
            "udf": call_log.times(3),
            "input_columns": ["id", "text"],
        },
        UdfDefinitionError,
        "2 input columns",
    ),
    "an input that is not there": (
        lambda call_log: {"path": "double", "udf": call_log.times(3), "input_columns": ["nope"]},
        RegistrationError,
        "'nope'",
    ),
    "an input of another type": (
        lambda call_log: {"path": "double", "udf": call_log.times(3), "input_columns": ["text"]},
        RegistrationError,
        "Type mismatch",
    ),
    "itself as its input": (
        lambda call_log: {"path": "double", "udf": call_log.times(3), "input_columns": ["double"]},
        RegistrationError,
        "among the inputs",
    ),
    "the same column": (
        lambda call_log: {"path": "triple", "nullable": True},
        RegistrationError,
        "twice",
    ),
    "a name that Lance keeps": (
        lambda call_log: {"path": "text", "name": "_rowid"},
        LanceSparkError,
        "_rowid",
    ),
    "a name with a dot": (lambda call_log: {"path": "text", "name": "a.b"}, LanceSparkError, "dot"),
    "no UDF to drop": (
        lambda call_log: {"path": "text", "drop_udf": True},
        RegistrationError,
        "no UDF",
    ),
    "no type": (lambda call_log: {"path": "text", "data_type": "int"}, LanceSparkError, "'text'"),
    "recreation as what cannot be": (
        lambda call_log: {
            "path": "double",
            "udf": of_type(pa.list_(pa.string(), 2)),
            "recreate": True,
        },
        LanceSparkError,
        "fixed width",
    ),
}


@pytest.mark.sample(6)
@pytest.mark.guarantee("T23")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_and_nothing_changes(filled: Table, call_log: CallLog, case: str):
    make, expected, message = WRONG[case]
    before, version = filled.to_arrow(), filled.version
    stored = os.listdir(Path(filled.uri, "_lance_spark", "udfs"))
    with pytest.raises(expected, match=message) as error:
        filled.alter_columns({"path": "triple", "udf": call_log.times(5)}, make(call_log))  # type: ignore[arg-type]
    assert isinstance(error.value, (LanceSparkError, UdfRuntimeError))
    assert filled.version == version and filled.to_arrow() == before
    assert os.listdir(Path(filled.uri, "_lance_spark", "udfs")) == stored


def test_an_alteration_of_nothing_is_refused(filled: Table):
    with pytest.raises(RegistrationError, match="nothing to alter"):
        filled.alter_columns()


def test_after_a_new_udf_the_next_backfill_computes_all_rows_exactly_once(
    filled: Table, call_log: CallLog
):
    filled.alter_columns({"path": "double", "udf": call_log.times(3)})
    assert filled.count_rows("double = id * 2") == 30, "values stay until the next backfill"
    plan = filled.plan_backfill("double")
    assert plan.total_rows_pending == 30 and plan.udf_mismatch
    assert filled.backfill("double").rows_computed == 30 and call_log.take() == ALL
    assert filled.count_rows("double = id * 3") == 30
    assert (
        filled.backfill("double").rows_computed == 0 and not filled.plan_backfill("double").has_work
    )
    assert call_log.take() == []


def test_it_is_not_computed_again_after_a_compaction(filled: Table, call_log: CallLog):
    filled.alter_columns({"path": "double", "udf": call_log.times(3)})
    filled.backfill("double")
    call_log.take()
    filled.to_lance().optimize.compact_files()
    assert len(filled.to_lance().get_fragments()) == 1
    result = filled.backfill("double")
    assert call_log.take() == [] and result.rows_computed == 0
    assert filled.count_rows("double = id * 3") == 30


def test_only_what_was_added_is_computed_after_an_append(filled: Table, call_log: CallLog):
    filled.alter_columns({"path": "double", "udf": call_log.times(3)})
    filled.backfill("double")
    call_log.take()
    filled.add([{"id": 30, "text": "x"}, {"id": 31, "text": "y"}])
    filled.backfill("double")
    assert call_log.take() == [30, 31] and filled.count_rows("double = id * 3") == 32


def test_a_partly_recomputed_column_goes_on_where_it_was(filled: Table, call_log: CallLog):
    filled.alter_columns({"path": "double", "udf": call_log.times(3)})
    assert (
        filled.backfill("double", num_frags=1).rows_computed == 10 and call_log.take() == ALL[:10]
    )
    assert filled.count_rows("double = id * 2 AND id > 0") == 20
    assert filled.backfill("double").rows_computed == 20 and call_log.take() == ALL[10:]
    assert filled.count_rows("double = id * 3") == 30


def test_values_of_an_earlier_udf_are_not_served_to_a_later_one_but_its_own_are(
    filled: Table, call_log: CallLog
):
    filled.alter_columns({"path": "double", "udf": call_log.times(3)})
    filled.backfill("double")
    call_log.take()
    filled.alter_columns({"path": "double", "udf": call_log.times(2)})
    filled.backfill("double")
    assert filled.count_rows("double = id * 2") == 30
    # Back to an earlier UDF that computed all rows: further calls are a matter of cost, but the values must be right.
    assert set(call_log.take()) <= set(ALL)
    assert filled.backfill("double").rows_computed == 0 and call_log.take() == []


def test_two_changes_between_backfills_are_one(filled: Table, call_log: CallLog):
    filled.alter_columns({"path": "double", "udf": call_log.times(3)})
    filled.alter_columns({"path": "double", "udf": call_log.times(4)})
    assert filled.backfill("double").rows_computed == 30 and call_log.take() == ALL
    assert filled.count_rows("double = id * 4") == 30


@pytest.mark.guarantee("T24")
def test_a_plain_column_can_get_a_udf_and_its_values_count_as_out_of_date(
    table: Table, call_log: CallLog
):
    table.to_lance().add_columns({"mine": "cast(-1 AS bigint)"})
    with pytest.raises(RegistrationError, match="no UDF is registered"):
        table.backfill("mine")
    table.alter_columns({"path": "mine", "udf": call_log.times(2)})
    assert table.backfill("mine").rows_computed == 30 and call_log.take() == ALL
    assert table.count_rows("mine = id * 2") == 30
    assert table.backfill("mine").rows_computed == 0


@pytest.mark.guarantee("T23")
def test_several_columns_are_altered_in_one_call(table: Table, call_log: CallLog):
    table.add_columns({"a": call_log.times(2), "b": call_log.times(2)})
    table.alter_columns(
        {"path": "a", "udf": call_log.times(3)},
        {"path": "b", "udf": call_log.times(4)},
        {"path": "text", "name": "t"},
    )
    table.backfill("a")
    table.backfill("b")
    assert table.count_rows("a = id * 3 AND b = id * 4") == 30 and "t" in table.schema.names


@pytest.mark.spark
def test_a_pyspark_udf_with_bound_inputs_can_be_the_new_one(filled: Table):
    @pandas_udf("bigint")
    def fourfold(value: pd.Series) -> pd.Series:
        return value * 4

    filled.alter_columns({"path": "double", "udf": fourfold, "input_columns": ["id"]})
    assert (
        filled.backfill("double").rows_computed == 30 and filled.count_rows("double = id * 4") == 30
    )


def test_a_udf_of_another_type_needs_the_column_to_be_made_anew(filled: Table):
    filled.alter_columns({"path": "double", "udf": of_type(pa.string()), "recreate": True})
    assert (
        filled.schema.field("double").type == pa.string()
        and filled.count_rows("double IS NULL") == 30
    )
    assert filled.backfill("double").rows_computed == 30
    assert filled.to_arrow(["double"], "id = 7").to_pylist() == [{"double": "7"}]
    assert filled.backfill("double").rows_computed == 0


def test_a_recreated_column_of_the_same_udf_is_computed_or_served_and_right(
    filled: Table, call_log: CallLog
):
    filled.alter_columns({"path": "double", "udf": call_log.times(2), "recreate": True})
    assert filled.count_rows("double IS NULL") == 30
    filled.backfill("double")
    assert filled.count_rows("double = id * 2") == 30


def test_siblings_do_not_get_another_udf_one_by_one(table: Table, call_log: CallLog):
    table.add_columns(pair())
    with pytest.raises(RegistrationError, match="one by one"):
        table.alter_columns({"path": "a", "udf": call_log.times(3)})


def test_a_renamed_column_is_filled_under_its_new_name(table: Table, call_log: CallLog):
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double", num_frags=1)
    table.alter_columns({"path": "double", "name": "twofold"})
    with pytest.raises(ColumnNotFoundError, match="'double'"):
        table.backfill("double")
    assert table.backfill("twofold").rows_computed == 20 and call_log.take() == ALL
    assert table.count_rows("twofold = id * 2") == 30


def test_a_renamed_input_is_still_the_input(table: Table, call_log: CallLog):
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double", num_frags=1)
    table.alter_columns({"path": "id", "name": "number"})
    result = table.backfill("double")
    assert (
        result.rows_computed == 20
        and call_log.take() == ALL
        and table.count_rows("double = number * 2") == 30
    )
    assert result.columns["double"].input_columns == ("number",)


def test_an_input_that_was_dropped_is_missed_and_another_of_its_name_does_not_replace_it(
    table: Table, call_log: CallLog
):
    table.add_columns({"double": call_log.times(2)})
    table.drop_columns(["id"])
    with pytest.raises(RegistrationError, match=r"Input columns are gone: 'id'.*alter_columns"):
        table.backfill("double")
    table.to_lance().add_columns({"id": "cast(7 AS bigint)"})
    # Lance may give the new column the old field id. Its values differ, and so do the results for them.
    table.alter_columns({"path": "double", "udf": call_log.times(2)})
    table.backfill("double")
    assert table.count_rows("double = 14") == 30 and call_log.take() == [7] * 30


def test_casts_and_nullability_are_passed_on_to_lance(filled: Table, call_log: CallLog):
    filled.alter_columns(
        {"path": "text", "data_type": pa.large_string()}, {"path": "id", "nullable": True}
    )
    assert filled.schema.field("text").type == pa.large_string()
    filled.add([{"id": 30, "text": "x"}])
    assert filled.backfill("double").rows_computed == 1 and call_log.take() == [30]


def test_a_cast_keeps_the_field_metadata_and_the_udf_in_one_version(
    filled: Table, call_log: CallLog
):
    metadata = {"comment": "twice", "mine": "1", "lance-encoding:compression": "zstd"}
    filled.to_lance().update_field_metadata({"double": metadata})
    before, version = dict(filled.schema.field("double").metadata), filled.version
    filled.alter_columns({"path": "double", "data_type": pa.decimal128(20, 0), "name": "twice"})
    field = filled.schema.field("twice")
    assert (field.metadata, field.type, filled.version) == (
        before,
        pa.decimal128(20, 0),
        version + 1,
    )
    filled.add([{"id": 30, "text": "x"}])
    assert filled.backfill("twice").rows_computed == 1 and call_log.take() == [30]
    assert filled.count_rows("twice = id * 2") == 31
    filled.delete("id = 7")
    filled.alter_columns(
        {"path": "twice", "data_type": pa.decimal128(21, 0)}, {"path": "id", "nullable": True}
    )
    assert filled.count_rows("twice = id * 2") == 30 and filled.backfill("twice").rows_computed == 0


def test_a_cast_that_depends_on_the_session_is_refused(db: Connection):
    moment = datetime(2024, 1, 1, 12, tzinfo=UTC)
    values = {
        "at": pa.array([moment], pa.timestamp("us", "UTC")),
        "local": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
        "day": pa.array([moment.date()]),
        "share": pa.array([1e20]),
        "clock": pa.array([moment.time()]),
        "tiny": pa.array([Decimal("0.00000001")]),
        "number": pa.array([1]),
        "days": pa.array([[moment.date()]]),
        "locals": pa.array([[moment.replace(tzinfo=None)]], pa.list_(pa.timestamp("us"))),
        "pairs": pa.array([[("k", moment)]], pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
        "nested": pa.array(
            [{"at": [moment]}], pa.struct({"at": pa.list_(pa.timestamp("us", "UTC"))})
        ),
    }
    table = db.create_table("moments", pa.table(values))
    zoned, naive = values["at"].type, values["local"].type
    for column, kind, reason in [
        ("at", naive, "time zone"),
        ("at", pa.date32(), "time zone"),
        ("local", zoned, "time zone"),
        ("day", zoned, "time zone"),
        *(
            (column, pa.string(), "text format")
            for column in ("at", "local", "share", "clock", "tiny")
        ),
        ("days", pa.list_(zoned), "time zone"),
        ("locals", pa.large_list(zoned), "time zone"),
        ("locals", pa.list_(pa.string()), "text format"),
        ("pairs", pa.map_(pa.string(), naive), "time zone"),
        ("nested", pa.struct({"at": pa.list_(naive)}), "time zone"),
        *((column, pa.int64(), "unit of the number") for column in ("at", "local", "clock")),
        *(
            ("number", kind, "unit of the number")
            for kind in (zoned, naive, pa.date64(), pa.duration("s"))
        ),
    ]:
        with pytest.raises(
            RegistrationError, match=rf"(?s){column!r} from .* depends on .*{reason}"
        ):
            table.alter_columns({"path": column, "data_type": kind})
    assert table.version == 1
    table.alter_columns(
        {"path": "day", "data_type": naive}, {"path": "at", "data_type": pa.timestamp("ms", "UTC")}
    )
    assert table.to_arrow()["day"].to_pylist() == [moment.replace(hour=0, tzinfo=None)]
    assert table.to_arrow()["at"].to_pylist() == [moment]


def test_a_cast_that_loses_values_of_the_udf_is_refused_until_the_udf_is_dropped(
    filled: Table, call_log: CallLog
):
    version = filled.version
    with pytest.raises(
        RegistrationError, match=r"int32 does not hold every value of int64.*drop_udf"
    ):
        filled.alter_columns({"path": "double", "data_type": pa.int32()})
    assert filled.version == version
    filled.alter_columns({"path": "double", "drop_udf": True})
    filled.alter_columns({"path": "double", "data_type": pa.int32()})
    assert filled.count_rows("double = id * 2") == 30
    filled.add([{"id": 30, "text": "x"}])
    with pytest.raises(RegistrationError, match="no UDF is registered"):
        filled.backfill("double")
    filled.alter_columns({"path": "double", "udf": of_type(pa.int32(), lambda value: value * 2)})
    assert (
        filled.backfill("double").rows_computed == 31 and filled.count_rows("double = id * 2") == 31
    )


@pytest.mark.parametrize(("cast", "kind"), [("text", pa.int64()), ("large", pa.int8())])
def test_a_cast_that_cannot_be_changes_nothing_of_the_whole_call(
    filled: Table, call_log: CallLog, cast: str, kind: pa.DataType
):
    filled.to_lance().add_columns({"large": "id * 1000"})
    before, version = filled.to_arrow(), filled.version
    with pytest.raises(RegistrationError, match=f"'{cast}'"):
        filled.alter_columns(
            {"path": "double", "udf": call_log.times(3)},
            {"path": "id", "name": "number"},
            {"path": cast, "data_type": kind},
        )
    assert filled.version == version and filled.to_arrow() == before
    assert filled.backfill("double").rows_computed == 0


def test_one_call_gives_a_column_another_udf_and_its_input_another_name(
    filled: Table, call_log: CallLog
):
    filled.alter_columns(
        {"path": "id", "name": "number"}, {"path": "double", "udf": call_log.times(3)}
    )
    assert filled.backfill("double").rows_computed == 30 and call_log.take() == ALL
    assert filled.count_rows("double = number * 3") == 30


@pytest.mark.parametrize(
    ("back", "message"),
    [(False, "has got another UDF while"), (True, "has got its UDF anew while")],
)
def test_a_running_job_whose_column_gets_another_udf_ends_without_old_values_under_it(
    table: Table, call_log: CallLog, tmp_path: Path, back: bool, message: str
):
    gate, note = str(tmp_path / "gate"), call_log.noter()

    @udf(data_type=pa.int64())
    def slow(id: int) -> int:
        import os
        import time

        note(id)
        while not os.path.exists(gate):
            time.sleep(0.01)
        return id * 2

    table.add_columns({"double": slow})
    job = table.backfill_async("double")
    eventually(lambda: os.path.exists(call_log.path))
    table.alter_columns({"path": "double", "udf": call_log.times(3)})
    if back:
        table.alter_columns({"path": "double", "udf": slow})
    Path(gate).touch()
    with pytest.raises(CommitImpossibleError, match=message):
        job.result(60)
    assert table.count_rows("double IS NULL") == 30 and job.status == "FAILED"
    assert table.get_job(job.job_id).status == "FAILED" and message in str(
        table.get_job(job.job_id).message
    )
    call_log.take()
    if not back:
        assert table.backfill("double").rows_computed == 30 and call_log.take() == ALL
        assert table.count_rows("double = id * 3") == 30


def test_dropping_takes_one_or_several_columns_or_none(filled: Table, call_log: CallLog):
    with pytest.raises(ColumnNotFoundError, match=r"'nope'.*nothing was dropped"):
        filled.drop_columns(["double", "nope"])
    assert "double" in filled.schema.names
    filled.add_columns({"other": call_log.times(2)})
    filled.drop_columns("double")
    filled.drop_columns(["other", "text"])
    assert filled.schema.names == ["id", "triple"]
    with pytest.raises(SchemaMismatchError, match="at least one column"):
        filled.drop_columns(["triple", "id"])


def test_a_column_that_was_dropped_and_added_again_starts_empty(filled: Table, call_log: CallLog):
    filled.drop_columns("double")
    filled.add_columns({"double": call_log.times(3)})
    assert filled.count_rows("double IS NULL") == 30
    assert filled.backfill("double").rows_computed == 30 and call_log.take() == ALL
    assert lance.dataset(filled.uri).count_rows("double = id * 3") == 30
