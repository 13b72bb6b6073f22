"""A mask selects exactly the rows at given positions of a fragment, regardless of deletions and moves."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.read.masks import range_mask, rows_mask, serialize_ids, serialize_range
from tests.lance_spark.read.conftest import MakeTable


@pytest.fixture(scope="module")
def plain_table(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    """One fragment whose row ids equal its positions."""
    table = pa.table({"id": pa.array(range(400_000), pa.int64())})
    return lance.write_dataset(table, str(tmp_path_factory.mktemp("masks") / "t"))


def selected(dataset: lance.LanceDataset, mask: bytes, **options: object) -> list[int]:
    return (
        dataset.scanner(columns=["id"], row_addr_allowlist=mask, **options)
        .to_table()["id"]
        .to_pylist()
    )


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, 1),
        (5, 8),
        (65_535, 65_537),
        (65_536, 131_072),
        (0, 400_000),
        (1, 399_999),
        (60_000, 330_000),
    ],
)
def test_a_run_selects_its_rows(plain_table, start: int, stop: int):
    assert selected(plain_table, serialize_range(0, start, stop)) == list(range(start, stop))


@settings(max_examples=30, deadline=None)
@given(ids=st.sets(st.integers(0, 399_999), min_size=1, max_size=50))
def test_scattered_ids_are_selected_alone(plain_table, ids: set[int]):
    mask = serialize_ids(np.array(list(ids), dtype=np.uint64))
    assert selected(plain_table, mask) == sorted(ids)


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param(range(0, 400_000, 101), id="arrays"),
        pytest.param(range(0, 400_000, 2), id="bitsets"),
        pytest.param(
            [*range(0, 65_536, 101), *range(65_536, 131_072, 3), *range(140_000, 300_000), 399_999],
            id="all",
        ),
        pytest.param([], id="none"),
    ],
)
def test_every_kind_of_container_selects_its_rows(plain_table, positions):
    mask = serialize_ids(np.array(positions, dtype=np.uint64))
    assert selected(plain_table, mask) == list(positions)


@pytest.mark.parametrize("stable", [True, False])
def test_scattered_rows_of_a_large_fragment_are_selected_but_for_deleted_ones(
    tmp_path: Path, stable: bool
):
    table = pa.table({"id": pa.array(range(300_000), pa.int64())})
    dataset = lance.write_dataset(
        table, str(tmp_path / "t"), enable_stable_row_ids=stable, max_rows_per_file=150_000
    )
    dataset.delete("id % 7 = 3")
    dataset.update({"id": "id + 1000000"}, where="id % 1000 = 8")
    rng = np.random.default_rng(7)
    for fragment in dataset.get_fragments():
        offsets = np.sort(
            rng.choice(fragment.physical_rows, fragment.physical_rows // 3, replace=False)
        ).astype(np.int64)
        live = dataset.scanner(columns=["id", "_rowaddr"], fragments=[fragment]).to_table()
        chosen = np.isin(live["_rowaddr"].to_numpy() & 0xFFFFFFFF, offsets)
        mask = rows_mask(dataset, fragment, offsets)
        assert (
            selected(dataset, mask, fragments=[fragment]) == live["id"].to_numpy()[chosen].tolist()
        )


def test_ids_of_several_upper_halves_do_not_mix(plain_table):
    ids = np.array([(1 << 32) + 3, (1 << 32) - 1, 5, 6], dtype=np.uint64)
    assert selected(plain_table, serialize_ids(ids)) == [5, 6]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [True, False])
def test_ranges_of_a_fragment_add_up_to_its_live_rows(
    make_table: MakeTable, stable: bool, version: str
):
    dataset = make_table(stable=stable, version=version)
    for fragment in dataset.get_fragments():
        whole = dataset.scanner(columns=["id", "_rowaddr"], fragments=[fragment]).to_table()
        parts = []
        for start in range(0, fragment.physical_rows, 37):
            stop = min(start + 37, fragment.physical_rows)
            mask = range_mask(dataset, fragment, start, stop)
            part = dataset.scanner(
                columns=["id", "_rowaddr"],
                fragments=[fragment],
                row_addr_allowlist=mask,
                filter="id >= 0",
            ).to_table()
            offsets = [a & 0xFFFFFFFF for a in part["_rowaddr"].to_pylist()]
            assert all(start <= offset < stop for offset in offsets)
            parts.append(part)
        assert pa.concat_tables(parts).to_pydict() == whole.to_pydict()


def test_a_mask_restricts_what_is_decoded(plain_table):
    """If a new pylance decoded the whole fragment under a mask, splitting a fragment would cost more than its gain."""
    read: list[int] = []

    def note(statistics: object) -> None:
        read.append(statistics.bytes_read)

    selected(
        plain_table, serialize_range(0, 0, 400_000), filter="id >= 0", scan_stats_callback=note
    )
    selected(plain_table, serialize_range(0, 0, 20_000), filter="id >= 0", scan_stats_callback=note)
    assert read[1] < read[0] / 2
