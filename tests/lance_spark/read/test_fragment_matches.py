"""Small fragments are scanned together for the rows that match a filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_spark.errors import FilterError
from lance_spark.rows.matching_rows import FragmentMatches
from tests.support.inline_jobs import without_spark


def make(folder: Path, bad_row: int = 45) -> lance.LanceDataset:
    """Makes a table of ten fragments of ten rows. The text of the bad row is no number."""
    ids = np.arange(100)
    texts = ["none" if number == bad_row else str(number) for number in ids]
    rows = pa.table({"id": ids, "text": texts})
    return lance.write_dataset(rows, str(folder / "t.lance"), max_rows_per_file=10)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of fragments of each scan."""
    scans, scanner = list[int](), lance.LanceDataset.scanner

    def count(self: lance.LanceDataset, *arguments: Any, **options: Any) -> lance.LanceScanner:
        scans.append(len(options.get("fragments") or ()))
        return scanner(self, *arguments, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", count)
    return scans


def match_all(dataset: lance.LanceDataset, text: str) -> dict[int, object]:
    """Returns the matching rows of each fragment, for two questions, or the error."""
    matches, results = FragmentMatches([*dataset.fragment_ids()]), dict[int, object]()
    for fragment in dataset.get_fragments():
        try:
            rows = matches.of(dataset, fragment, text)
        except FilterError:
            results[fragment.fragment_id] = "error"
            continue
        assert matches.of(dataset, fragment, text) == rows
        results[fragment.fragment_id] = [*rows]
    return results


def test_small_fragments_share_a_scan(tmp_path: Path, scans: list[int]) -> None:
    """One scan has the matching rows of all fragments, without deleted rows, for any questions."""
    dataset = make(tmp_path)
    dataset.delete("id = 13")
    results = match_all(dataset, "id % 10 = 3 AND id < 40")
    assert results == {0: [3], 1: [], 2: [3], 3: [3]} | {number: [] for number in range(4, 10)}
    assert scans == [10]


@pytest.mark.parametrize("bad_row", [5, 45])
def test_a_failed_filter_fails_for_its_fragment_alone(
    tmp_path: Path, scans: list[int], bad_row: int
) -> None:
    """After an error, each fragment has a scan of its own."""
    results = match_all(make(tmp_path, bad_row), "CAST(text AS INT) % 10 = 7")
    assert results == {number: [7] for number in range(10)} | {bad_row // 10: "error"}
    assert scans == [10, *[1] * 10]


def test_many_rows_share_no_scan_however_few_bytes_they_have(
    tmp_path: Path, scans: list[int]
) -> None:
    rows = pa.table({"x": pa.array(np.zeros(900_000, dtype=np.int8))})
    dataset = lance.write_dataset(rows, str(tmp_path / "t.lance"), max_rows_per_file=300_000)
    assert sum(file.stat().st_size for file in tmp_path.rglob("data/*")) < 1 << 20
    matches = FragmentMatches([*dataset.fragment_ids()])
    for fragment in dataset.get_fragments():
        assert len(matches.of(dataset, fragment, "x = 0")) == 300_000
    assert scans == [1, 1, 1]


def test_a_backfill_scans_small_fragments_together_for_its_filter(
    tmp_path: Path, scans: list[int]
) -> None:
    with without_spark(tmp_path) as lab:
        table = lab.make(pa.table({"id": range(100)}), rows_per_file=5)
        table.add_columns({"v": lab.udf()})
        table.backfill("v", where="id >= 50")
        assert sorted(lab.calls()) == [*range(50, 100)]
    assert max(scans) >= 10 and len(scans) < 20
