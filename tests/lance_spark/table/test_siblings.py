"""Sibling columns of a UDF that returns `Columns[T]`: added, filled and recomputed together."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pyarrow as pa
import pytest

from lance_spark import RegistrationError, Table, UnsupportedOperationError
from tests.lance_spark.table.call_log import CallLog
from udf_runtime import UDF, Columns, UnpackedUDF, udf

pytestmark = pytest.mark.sample(1, tests=2)

ALL = list(range(30))


class Parts(NamedTuple):
    half: float
    name: str
    tags: list[str]


def parts(call_log: CallLog, *, version: str | None = None) -> UDF:
    note = call_log.noter()

    @udf(version=version)
    def parts(id: int) -> Columns[Parts]:
        note(id)
        return Parts(id / 2, f"n{id}", ["even"] if id % 2 == 0 else [])

    return parts


CORRECT = (
    "half = id / 2.0 AND name = concat('n', cast(id AS string)) AND array_length(tags) IS NOT NULL"
)


@pytest.fixture
def siblings(table: Table, call_log: CallLog) -> Table:
    """The table with the columns `half`, `name` and `tags`, not filled."""
    table.add_columns(parts(call_log))
    return table


def assert_filled(table: Table, rows: int = 30) -> None:
    for row in table.to_arrow().to_pylist()[:rows]:
        assert (row["half"], row["name"]) == (row["id"] / 2, f"n{row['id']}")
        assert row["tags"] == (["even"] if row["id"] % 2 == 0 else [])


@pytest.mark.guarantee("T20")
@pytest.mark.parametrize("targets", ["half", "tags", ["name"], ["tags", "half", "name"]])
def test_naming_any_sibling_or_the_whole_group_fills_all_in_one_pass_and_one_commit(
    siblings: Table, call_log: CallLog, targets: str | list[str]
):
    version = siblings.version
    result = siblings.backfill(targets)
    assert call_log.take() == ALL and siblings.version == version + 1 == result.versions[0]
    assert set(result.columns) == {"half", "name", "tags"} and result.rows_computed == 30
    assert_filled(siblings)
    assert siblings.backfill("name").rows_computed == 0 and call_log.take() == []


@pytest.mark.parametrize(
    "targets",
    [
        ["half", "name"],
        ["half", "text"],
        ["half", "name", "tags", "text"],
        ["id", "text"],
        ["id", "half"],
    ],
)
def test_a_list_that_is_not_one_group_is_refused(siblings: Table, targets: list[str]):
    version = siblings.version
    for act in (siblings.backfill, siblings.backfill_async, siblings.plan_backfill):
        with pytest.raises(UnsupportedOperationError, match="not the columns of one UDF") as error:
            act(targets)
        assert isinstance(error.value, NotImplementedError)
    assert siblings.version == version


def test_a_row_that_lost_one_sibling_is_called_once_and_writes_all(
    siblings: Table, call_log: CallLog
):
    siblings.backfill("half")
    call_log.take()
    siblings.to_lance().update(
        {"name": "NULL", "half": "cast(-1.0 AS double)"}, where="id IN (3, 17)"
    )
    assert siblings.plan_backfill("tags").total_rows_pending == 2
    siblings.backfill("tags")
    assert set(call_log.take()) <= {3, 17}, "a row with all its values was computed"
    assert siblings.count_rows("name IS NULL") == 0
    assert_filled(siblings)


@pytest.mark.guarantee("T21")
def test_the_same_udf_with_two_prefixes_makes_two_groups(table: Table, call_log: CallLog):
    table.add_columns(UnpackedUDF(parts(call_log), prefix="a_"))
    table.add_columns(UnpackedUDF(parts(call_log), prefix="b_"))
    table.backfill("a_half")
    assert call_log.take() == ALL and table.count_rows("b_half IS NULL") == 30
    table.backfill("b_name")
    assert table.count_rows("a_half = b_half AND a_name = b_name") == 30
    with pytest.raises(UnsupportedOperationError, match="a_half"):
        table.backfill(["a_half", "a_name", "b_tags"])


def test_a_renamed_sibling_stays_in_its_group(siblings: Table, call_log: CallLog):
    siblings.backfill("half", num_frags=1)
    siblings.alter_columns({"path": "name", "name": "title"})
    assert siblings.backfill("title").rows_computed == 20 and call_log.take() == ALL
    assert siblings.count_rows("half = id / 2.0 AND title = concat('n', cast(id AS string))") == 30
    assert siblings.backfill(["half", "title", "tags"]).rows_computed == 0


def test_a_group_that_lost_a_sibling_says_so(siblings: Table):
    siblings.drop_columns("name")
    with pytest.raises(
        RegistrationError, match=r"Sibling columns are gone: 'name'.*add all of them again"
    ):
        siblings.backfill("half")


def test_all_siblings_can_be_dropped_and_added_again(siblings: Table, call_log: CallLog):
    siblings.backfill("half")
    siblings.drop_columns(["half", "name", "tags"])
    siblings.add_columns(parts(call_log))
    assert siblings.count_rows("half IS NULL AND name IS NULL AND tags IS NULL") == 30
    siblings.backfill("half")
    assert_filled(siblings)


def test_a_udf_that_is_given_has_to_have_the_same_fields(siblings: Table, call_log: CallLog):
    with pytest.raises(RegistrationError, match="not the columns"):
        siblings.backfill("half", udf=call_log.times(2))

    class OtherPair(NamedTuple):
        half: float
        other_pair: str

    @udf
    def other_pair(id: int) -> Columns[OtherPair]:
        return OtherPair(0.0, "")

    with pytest.raises(RegistrationError, match="not the columns"):
        siblings.backfill("half", udf=other_pair)
    assert siblings.backfill("half", udf=parts(call_log, version="2")).rows_computed == 30
    assert_filled(siblings)


def test_a_field_of_another_type_is_refused(siblings: Table):
    class Typed(NamedTuple):
        half: int
        name: str
        tags: list[str]

    @udf
    def typed(id: int) -> Columns[Typed]:
        return Typed(0, "", [])

    with pytest.raises(RegistrationError, match=r"int64.*'half' is double"):
        siblings.backfill("half", udf=typed)


def test_siblings_may_be_none_one_by_one_and_such_rows_are_not_called_again(
    table: Table, call_log: CallLog
):
    note = call_log.noter()

    @dataclasses.dataclass
    class Maybe:
        low: int | None
        high: int | None

    @udf
    def maybe(id: int) -> Columns[Maybe]:
        note(id)
        return Maybe(id if id < 15 else None, id if id >= 10 else None)

    table.add_columns(maybe)
    assert table.backfill("low").rows_computed == 30 and call_log.take() == ALL
    assert table.count_rows("low IS NULL") == 15 and table.count_rows("high IS NULL") == 10
    assert table.backfill("high").rows_computed == 0 and table.backfill("low").rows_computed == 0
    assert call_log.take() == []


def test_vector_kinds_fill_siblings_with_a_struct_array_or_a_batch(table: Table):
    @udf(name="by_struct")
    def by_struct(id: pa.Array) -> Columns[Parts]:
        return pa.StructArray.from_arrays(
            [
                pa.array([v / 2 for v in id.to_pylist()]),
                pa.array([f"n{v}" for v in id.to_pylist()]),
                pa.array(
                    [["even"] if v % 2 == 0 else [] for v in id.to_pylist()], pa.list_(pa.string())
                ),
            ],
            names=["half", "name", "tags"],
        )

    table.add_columns(by_struct)
    table.backfill("half")
    assert_filled(table)
