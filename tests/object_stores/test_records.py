"""Records of computed rows on object stores: several drivers append at once, and one compacts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from lance_spark.backfill.reuse.computed_rows import RecordStore
from tests.object_stores.stores import Store
from tests.support.records import record

pytestmark = pytest.mark.cluster

DRIVERS, COMMITS = 4, 8


def test_records_of_several_drivers_are_all_there_beside_a_compaction(store: Store):
    records = RecordStore(store.place().ref)
    records.append([record(99, version) for version in range(1, 7)])

    def drive(fragment: int) -> None:
        for version in range(1, COMMITS + 1):
            records.append([record(fragment, version)])
            assert records.load("token").of(fragment)[0] == record(fragment, version)

    with ThreadPoolExecutor(DRIVERS) as pool:
        drivers = [pool.submit(drive, fragment) for fragment in range(DRIVERS)]
        assert (
            records.compact("token", keep=lambda fragment_record: fragment_record.fragment_id != 99)
            == 6
        )
        for driver in drivers:
            driver.result()
    loaded = list(records.load("token"))
    assert loaded == [record(f, v) for f in range(DRIVERS) for v in range(COMMITS, 0, -1)]
