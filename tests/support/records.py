"""Records of computed rows and of jobs, made up."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lance_spark.backfill.reuse.computed_rows import FragmentRecord
from lance_spark.jobs.history import this_process
from lance_spark.jobs.records import JobRecord
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


def job_record(job_id: str, **changes: Any) -> JobRecord:
    """Returns the end of a job; the start of the job has the same `staging_id`."""
    current_time = datetime.now(UTC)
    job = JobRecord(
        job_id=job_id,
        status="DONE",
        columns=("v",),
        udf_name="",
        udf_version="",
        key="",
        where=None,
        read_version=1,
        staging_id=uuid.uuid5(uuid.NAMESPACE_OID, job_id).hex + "0" * 8,
        launched_at=current_time,
        updated_at=current_time,
        launched_by="somebody",
        process=this_process(),
    )
    return replace(job, **changes)
