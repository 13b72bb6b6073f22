"""A concurrent writer deletes the table in an object store at the moment of a commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

import lance_spark
from lance_spark.errors import CommitConflictError, CommitError, CommitImpossibleError
from tests.lance_spark.write.backfills import Backfill, computed, make_table, snapshot_rows
from tests.object_stores.stores import Store, StorePlace
from tests.support.inline_jobs import NoSpark

pytestmark = pytest.mark.cluster


def backfill(place: StorePlace) -> None:
    job = Backfill(
        place.uri, "c", LongType(), options={"input_columns": "id,text"}, storage=place.storage
    )
    job.commit(
        job.task(
            [
                job.batch(
                    *zip(*computed(snapshot_rows(place.uri, storage=place.storage)), strict=True)
                )
            ]
        )
    )


def table_of(place: StorePlace) -> lance_spark.Table:
    session: Any = NoSpark()
    return lance_spark.connect(place.folder, session, place.storage, progress=False).open_table("t")


WRITES: dict[str, tuple[type[CommitError], Callable[[StorePlace], object]]] = {
    "append": (
        CommitConflictError,
        lambda place: table_of(place).add([{"id": 100, "text": "t100", "other": 1, "c": None}]),
    ),
    "column": (
        CommitConflictError,
        lambda place: table_of(place).add_columns(pa.field("n", pa.int64())),
    ),
    "backfill": (CommitImpossibleError, backfill),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_leaves_no_object_at_the_place_of_a_deleted_table(
    kind: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store.place()
    make_table(place.uri, storage=place.storage, c=pa.int64())
    error, write = WRITES[kind]

    def drop_before(name: str) -> None:
        real = getattr(lance.LanceDataset, name)

        def commit(base: Any, *arguments: Any, **more: Any) -> Any:
            if getattr(base, "uri", "") == place.uri:  # no commit of the probe of the store
                lance.LanceDataset.drop(place.uri, place.storage)
            return real(base, *arguments, **more)

        monkeypatch.setattr(lance.LanceDataset, name, commit)

    drop_before("commit")
    drop_before("add_columns")
    with pytest.raises(error, match=r"deleted at the moment of the commit.*Nothing was committed"):
        write(place)
    assert place.objects() == []
