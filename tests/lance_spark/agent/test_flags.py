"""`auto_backfill` of columns and `auto_refresh` of views: stored, shown, switched on and off."""

from __future__ import annotations

import json
from typing import NamedTuple

import lance
import pytest

from lance_spark import Columns, Connection, RegistrationError, Table, ViewError, udf
from lance_spark.columns.binding import find_auto_backfilled
from tests.support.logs import Log, make


@udf(auto_backfill=True)
def double(x: int) -> int:
    return 2 * x


@udf
def triple(x: int) -> int:
    return 3 * x


class Both(NamedTuple):
    low: int
    high: int


@udf
def split(x: int) -> Columns[Both]:
    return Both(x, x)


def kept(table: Table) -> set[tuple[str, ...]]:
    return set(find_auto_backfilled(table.to_lance()))


def test_a_column_has_the_choice_of_its_udf_or_of_the_call(db: Connection):
    table = make(db)
    table.add_columns({"a": double, "b": triple})
    table.add_columns({"c": triple}, auto_backfill=True)
    table.add_columns({"d": double}, auto_backfill=False)
    table.add_columns(split, auto_backfill=True)
    assert kept(table) == {("a",), ("c",), ("low", "high")}
    assert "a: int64 = double(), auto_backfill, b: int64 = triple(), c" in repr(table)


def test_alter_columns_switches_it_off_and_on_also_for_siblings(db: Connection):
    table = make(db)
    table.add_columns({"a": double})
    table.add_columns(split, auto_backfill=True)
    version = table.alter_columns(
        {"path": "a", "auto_backfill": False}, {"path": "high", "auto_backfill": False}
    ).version
    assert kept(table) == set()
    assert table.alter_columns({"path": "a", "auto_backfill": False}).version == version
    table.alter_columns({"path": "low", "auto_backfill": True})
    assert kept(table) == {("low", "high")}


def test_a_new_udf_keeps_the_choice_of_the_column(db: Connection):
    table = make(db)
    table.add_columns({"a": triple, "b": triple})
    table.alter_columns({"path": "a", "udf": double})
    assert kept(table) == {("a",)}
    table.alter_columns(
        {"path": "a", "udf": triple}, {"path": "b", "udf": triple, "auto_backfill": True}
    )
    assert kept(table) == {("a",), ("b",)}
    table.alter_columns(
        {"path": "a", "udf": triple, "recreate": True},
        {"path": "b", "udf": triple, "auto_backfill": False},
    )
    assert kept(table) == {("a",)}
    table.alter_columns({"path": "a", "drop_udf": True})
    assert kept(table) == set()


def test_a_binding_of_an_earlier_release_has_no_choice(db: Connection):
    table = make(db)
    table.add_columns({"a": double})
    dataset = lance.dataset(table.uri)
    binding = json.loads(dataset.schema.field("a").metadata[b"lance-spark:udf"])
    assert binding.pop("auto_backfill") is True
    dataset.update_field_metadata({"a": {"lance-spark:udf": json.dumps(binding)}})
    assert kept(table) == set()
    assert table.plan_backfill("a").total_rows_pending == 40


@pytest.mark.parametrize(
    ("alteration", "message"),
    [
        ({"path": "x", "auto_backfill": True}, "has no UDF"),
        ({"path": "a", "auto_backfill": 1}, "auto_backfill is 1"),
        ({"path": "a", "auto_backfill": True, "name": "b"}, "cannot alter 'name'"),
        ({"path": "a", "udf": triple, "auto_backfill": None}, "auto_backfill is None"),
    ],
)
def test_wrong_alterations_change_nothing(
    db: Connection, alteration: dict[str, object], message: str
):
    table = make(db)
    table.add_columns({"a": double})
    version = table.version
    with pytest.raises(RegistrationError, match=message):
        table.alter_columns(alteration)
    assert table.version == version


def test_a_column_without_a_udf_cannot_be_kept_up_to_date(db: Connection):
    table = make(db)
    with pytest.raises(RegistrationError, match="column 'b' has none"):
        table.add_columns({"a": double, "b": "x + 1"}, auto_backfill=True)
    assert table.schema.names == ["x"]


def test_a_view_has_the_choice_of_its_creation_and_alter_view_changes_it(db: Connection, log: Log):
    table = make(db)
    view = db.create_materialized_view("v", table.search(None).select(["x"]), auto_refresh=True)
    assert [step.name for step in db.agent(allow=["*"]).plan().steps] == ["v"]
    version = view.alter_view(auto_refresh=False).version
    assert db.agent(allow=["*"]).plan().steps == ()
    assert view.alter_view(auto_refresh=False).version == version
    view.alter_view(auto_refresh=True)
    assert db.agent(allow=["*"]).plan().has_work
    with pytest.raises(ViewError, match="no materialized view"):
        table.alter_view(auto_refresh=True)


def test_the_udf_of_a_view_is_refreshed_with_the_view(db: Connection):
    table = make(db)
    view = db.create_materialized_view(
        "v", table.search(None).select({"y": double}), auto_refresh=True
    )
    assert [(step.action, step.name) for step in db.agent(allow=["*"]).plan().steps] == [
        ("refresh", "v")
    ]
    with pytest.raises(RegistrationError, match="alter_view"):
        view.alter_columns({"path": "y", "auto_backfill": True})
