"""Records of computed rows, made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lance_spark.backfill.reuse.computed_rows import FragmentRecord
from lance_spark.rows.row_set import RowSet


def record(fragment: int, version: int, **changes: Any) -> FragmentRecord:
    """Returns a record of a hundred rows: one failed, two are NULL."""
    fragment_record = FragmentRecord(
        column="token",
        fragment_id=fragment,
        physical_rows=100,
        table_version=version,
        job_id=f"job-{version}",
        key="k" * 32,
        udf_version="v1",
        source=f"source of {fragment}",
        target_file=f"{version}-{fragment}.lance",
        computed=RowSet.span(0, 100) - RowSet.of([7]),
        nulls=RowSet.of([3, 4]),
        failed=RowSet.of([7]),
    )
    return replace(fragment_record, **changes)
