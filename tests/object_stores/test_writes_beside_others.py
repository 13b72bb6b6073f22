"""A DataFrame backfill, on object stores, with a concurrent commit between its snapshot and its own commit."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

from lance_spark.commit.conflicts.history import last_commit
from lance_spark.errors import CommitImpossibleError
from tests.lance_spark.write.backfills import Backfill, computed, make_table, snapshot_rows
from tests.object_stores.others import COMMITTED, IMPOSSIBLE, Scenario, on_stores, work_of_others
from tests.object_stores.stores import Store, StorePlace

pytestmark = [pytest.mark.cluster, pytest.mark.sample(4)]


@pytest.fixture
def place(store: Store) -> StorePlace:
    new_place = store.place()
    make_table(new_place.uri, storage=new_place.storage, c=pa.int64())
    return new_place


def staged(place: StorePlace) -> tuple[Backfill, object]:
    """Returns a write with completed tasks, and their messages."""
    job = Backfill(
        place.uri, "c", LongType(), options={"input_columns": "id,text"}, storage=place.storage
    )
    rows = computed(snapshot_rows(place.uri, storage=place.storage))
    return job, job.task([job.batch(*zip(*rows, strict=True))])


@on_stores("scenario", [(scenario,) for scenario in COMMITTED])
def test_values_are_committed_beside(scenario: Scenario, place: StorePlace) -> None:
    job, message = staged(place)
    scenario.act(place)
    foreign_work = work_of_others(place)
    result = job.commit(message)
    assert place.column("c") == scenario.values(lambda _: None)
    assert work_of_others(place) == foreign_work, "another writer's work changed"
    numbers = (result.new_rows, result.rows_gone, result.rows_carried, result.rows_nulled)
    new, deleted_count, changed = (
        len(list(rows)) for rows in (scenario.new, scenario.deleted, scenario.changed)
    )
    assert numbers == (new, deleted_count, scenario.carried, changed)
    assert result.version == place.open().version and place.orphans() == set()
    assert last_commit(place.uri, place.storage) == result


@on_stores("act, text", IMPOSSIBLE)
def test_values_are_refused_after(
    act: Callable[[StorePlace], None], text: str, place: StorePlace
) -> None:
    job, message = staged(place)
    act(place)
    version, foreign_contents = place.open().version, place.contents()
    with pytest.raises(CommitImpossibleError, match=text) as caught:
        job.commit(message)
    assert place.uri in str(caught.value)
    assert place.open().version == version and place.contents() == foreign_contents
