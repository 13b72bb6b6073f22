"""Fragments whose metadata claims more rows than their data files have."""

from __future__ import annotations

import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError
from tests.support.inline_jobs import without_spark


@pytest.mark.parametrize("claim", [11, (1 << 22) + 1, pytest.param(1 << 31, marks=pytest.mark.long)])
def test_a_backfill_of_a_fragment_that_claims_missing_rows_ends_within_seconds(claim: int, tmp_path: Path) -> None:
    with without_spark(tmp_path) as lab:
        dataset = lance.write_dataset(pa.table({"id": pa.array(range(10), pa.int64())}), lab.uri)
        forged = dataset.get_fragments()[0].metadata
        forged.physical_rows = claim
        lance.LanceDataset.commit(lab.uri, lance.LanceOperation.Overwrite(dataset.schema, [forged]))
        table = lab.table()
        table.add_columns({"y": (lab.udf(), ["id"])})
        version, began = table.version, time.monotonic()
        with pytest.raises(BackfillIncompleteError, match=r"cannot be read: .*fragment 1") as caught:
            table.backfill("y")
        assert time.monotonic() - began < 60
        assert (table.version, lab.calls() if claim > 11 else []) == (version, [])
        assert caught.value.result.fragments_done == 0
