"""A mask selects exactly the rows at some positions of a fragment, whatever was deleted or moved."""

from __future__ import annotations

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.read.masks import range_mask, serialize_ids, serialize_runs
from tests.lance_spark.read.conftest import MakeTable


@pytest.fixture(scope="module")
def plain_table(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    """One fragment whose row ids are its positions."""
    table = pa.table({"id": pa.array(range(400_000), pa.int64())})
    return lance.write_dataset(table, str(tmp_path_factory.mktemp("masks") / "t"))


def selected(dataset: lance.LanceDataset, mask: bytes, **options: object) -> list[int]:
    return dataset.scanner(columns=["id"], row_addr_allowlist=mask, **options).to_table()["id"].to_pylist()


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (5, 8), (65_535, 65_537), (65_536, 131_072), (0, 400_000), (1, 399_999), (60_000, 330_000)],
)
def test_a_run_selects_its_rows(plain_table, start: int, stop: int):
    assert selected(plain_table, serialize_runs(0, [(start, stop)])) == list(range(start, stop))


@settings(max_examples=30, deadline=None)
@given(ids=st.sets(st.integers(0, 399_999), min_size=1, max_size=50))
def test_scattered_ids_are_selected_alone(plain_table, ids: set[int]):
    mask = serialize_ids(np.array(list(ids), dtype=np.uint64))
    assert selected(plain_table, mask) == sorted(ids)


def test_ids_of_several_upper_halves_do_not_mix(plain_table):
    ids = np.array([(1 << 32) + 3, (1 << 32) - 1, 5, 6], dtype=np.uint64)
    assert selected(plain_table, serialize_ids(ids)) == [5, 6]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [True, False])
def test_ranges_of_a_fragment_add_up_to_its_live_rows(make_table: MakeTable, stable: bool, version: str):
    dataset = make_table(stable=stable, version=version)
    for fragment in dataset.get_fragments():
        whole = dataset.scanner(columns=["id", "_rowaddr"], fragments=[fragment]).to_table()
        parts = []
        for start in range(0, fragment.physical_rows, 37):
            stop = min(start + 37, fragment.physical_rows)
            mask = range_mask(dataset, fragment, start, stop)
            part = dataset.scanner(
                columns=["id", "_rowaddr"], fragments=[fragment], row_addr_allowlist=mask, filter="id >= 0"
            ).to_table()
            offsets = [a & 0xFFFFFFFF for a in part["_rowaddr"].to_pylist()]
            assert all(start <= offset < stop for offset in offsets)
            parts.append(part)
        assert pa.concat_tables(parts).to_pydict() == whole.to_pydict()


def test_a_mask_restricts_what_is_decoded(plain_table):
    """If a new pylance read the whole fragment under a mask, cutting a fragment would cost more than it gains."""
    read: list[int] = []

    def note(statistics: object) -> None:
        read.append(statistics.bytes_read)

    selected(plain_table, serialize_runs(0, [(0, 400_000)]), filter="id >= 0", scan_stats_callback=note)
    selected(plain_table, serialize_runs(0, [(0, 20_000)]), filter="id >= 0", scan_stats_callback=note)
    assert read[1] < read[0] / 2
