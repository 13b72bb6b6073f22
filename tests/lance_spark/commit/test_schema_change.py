"""Changes without data: each names its author, and adopts the effects of concurrent commits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.commit import schema_change
from lance_spark.commit.attempt import this_user
from lance_spark.commit.conflicts.history import USER_KEY
from lance_spark.commit.schema_change import change_schema, set_config, set_field_metadata
from lance_spark.dataset import DatasetRef
from lance_spark.errors import ColumnNotFoundError
from lance_spark.indexes.upkeep import drop_index

Change = Callable[[lance.LanceDataset], lance.LanceOperation.BaseOperation]


@pytest.fixture
def ref(tmp_path: Path) -> DatasetRef:
    table = pa.table({"id": range(10), "s": [{"a": number} for number in range(10)]})
    dataset = lance.write_dataset(
        table, tmp_path / "t.lance", max_rows_per_file=4, enable_stable_row_ids=True
    )
    dataset.update_config({"kept": "1", "gone": "2"})
    dataset.create_scalar_index("id", "BTREE", name="by_id")
    dataset.insert(pa.table({"id": [10], "s": [{"a": 10}]}))
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    return DatasetRef.at(str(tmp_path / "t.lance"), {}).pin(None)


CHANGES: dict[str, tuple[Change, Callable[[lance.LanceDataset], object], object]] = {
    "configuration": (
        lambda _: set_config({"new": "3", "gone": None}),
        lambda head: {
            key: value for key, value in head.config().items() if not key.startswith("lance.")
        },
        {"kept": "1", "new": "3"},
    ),
    "metadata": (
        lambda head: set_field_metadata(head, {"s.a": {"k": "v"}, "id": {"x": "y"}}),
        lambda head: [
            head.schema.field("id").metadata,
            head.schema.field("s").type.field("a").metadata,
        ],
        [{b"x": b"y"}, {b"k": b"v"}],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_says_who_made_it_and_is_tried_again_on_the_latest_version(
    ref: DatasetRef, what: str
) -> None:
    change, real_call, expected = CHANGES[what]
    tries = []

    def beside_another(head: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
        tries.append(head.version)
        if len(tries) == 1:
            change_schema(ref, change)  # takes the slot, with the same keys
        return change(head)

    head = change_schema(ref, beside_another)
    assert real_call(head) == expected
    assert (head.read_transaction(head.version).transaction_properties or {})[
        USER_KEY
    ] == this_user()
    assert head.count_rows() == 11 and head.describe_indices()


def test_an_index_that_is_dropped_goes_with_all_its_parts_and_says_who_dropped_it(
    ref: DatasetRef,
) -> None:
    assert len(ref.open_latest().describe_indices()[0].segments) == 2
    drop_index(ref, "by_id")
    head = ref.open_latest()
    assert head.describe_indices() == [] and head.scanner(filter="id = 10").to_table().num_rows == 1
    assert (head.read_transaction(head.version).transaction_properties or {})[
        USER_KEY
    ] == this_user()


def test_metadata_of_a_column_that_is_not_there_changes_nothing(ref: DatasetRef) -> None:
    before = ref.open_latest().version
    with pytest.raises(ColumnNotFoundError, match=r"'s\.b'.*columns are id, s"):
        change_schema(ref, lambda head: set_field_metadata(head, {"s.b": {"k": "v"}}))
    assert ref.open_latest().version == before


def test_a_change_that_keeps_losing_looks_at_each_version_once(
    ref: DatasetRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    before = ref.open_latest().version
    find_events = schema_change.events_between

    def recorded(dataset: lance.LanceDataset, after: int, upto: int) -> object:
        looked_at.extend(range(after + 1, upto + 1))
        return find_events(dataset, after, upto)

    monkeypatch.setattr(schema_change, "events_between", recorded)
    rounds = []

    def beside_another(head: lance.LanceDataset) -> lance.LanceOperation.BaseOperation:
        rounds.append(head.version)
        if len(rounds) <= 5:
            lance.dataset(ref.uri).update_config({"mine": f"other {len(rounds)}"})
        return set_config({"mine": "1"})

    head = change_schema(ref, beside_another)
    assert head.config()["mine"] == "1" and len(rounds) == 6
    assert looked_at == list(range(before + 1, head.version))
