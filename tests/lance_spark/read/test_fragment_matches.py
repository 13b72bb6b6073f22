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


@pytest.fixture
def dataset(tmp_path: Path) -> lance.LanceDataset:
    """Returns a table of ten fragments of ten rows. The text of row 45 is no number."""
    ids = np.arange(100)
    texts = ["none" if number == 45 else str(number) for number in ids]
    rows = pa.table({"id": ids, "text": texts})
    return lance.write_dataset(rows, str(tmp_path / "t.lance"), max_rows_per_file=10)


def _match_all(
    dataset: lance.LanceDataset, text: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, object], list[int]]:
    """Returns the matching rows or the error of each fragment, and the fragments of each scan."""
    scans, scanner = [], lance.LanceDataset.scanner

    def count(self: lance.LanceDataset, **options: Any) -> lance.LanceScanner:
        scans.append(len(options["fragments"]))
        return scanner(self, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", count)
    matches, results = FragmentMatches(range(10)), dict[int, object]()
    for fragment in dataset.get_fragments():
        try:
            results[fragment.fragment_id] = matches.of(dataset, fragment, text).tolist()
        except FilterError:
            results[fragment.fragment_id] = "error"
    return results, scans


def test_small_fragments_share_a_scan(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scan has the matching rows of all fragments, without deleted rows."""
    dataset.delete("id = 13")

    results, scans = _match_all(dataset, "id % 10 = 3 AND id < 40", monkeypatch)

    assert results == {0: [3], 1: [], 2: [3], 3: [3]} | {number: [] for number in range(4, 10)}
    assert scans == [10]


def test_a_failed_filter_fails_for_its_fragment_alone(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error, each fragment has a scan of its own."""
    results, scans = _match_all(dataset, "CAST(text AS INT) % 10 = 7", monkeypatch)

    assert results == {number: [7] for number in range(10)} | {4: "error"}
    assert scans == [10, *[1] * 10]
