"""Folders of tables for reports: with jobs of made-up records, and with hostile texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_spark
from lance_spark import Connection, Table
from lance_spark.dataset import DatasetRef
from lance_spark.jobs.history import JobHistory
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.tables import ERRORS, JOBS, append_rows
from tests.support.records import job_record

SCRIPT = "<script>parent.ran = 1</script>"
HOSTILE = (
    SCRIPT,
    "\"><img src=x onerror='parent.ran = 1'>",
    "</style></title></bdi></dd><script>parent.ran = 1</script>",
    "javascript:parent.ran=1",
    "&lt;script&gt; &#x3c;script&#x3e;",
    "a\x00b\x1b[31m\x7f",
    "\u202egnp.exe\u2066",
    "שלום إسم",
    "long" * 500,
    "x' style='position:fixed",
    "🏴‍☠️ \ufffe",
)
"""Texts that any writer of a table may choose."""


def no_spark() -> Any:
    raise AssertionError("a report starts no Spark session")


def connect(folder: Path) -> Connection:
    return lance_spark.connect(str(folder), no_spark, progress=False)


def write_jobs(
    table: Table, records: Sequence[JobRecord], storage: dict[str, str] | None = None
) -> None:
    rows = pa.Table.from_pylist([record.to_row() for record in records], schema=JOBS.schema)
    append_rows(DatasetRef.at(table.uri, storage or {}), JOBS, rows)


def ended_jobs(count: int, **changes: Any) -> list[JobRecord]:
    """Returns jobs of one minute each, the newest first."""
    moment = datetime.now(UTC)
    return [
        job_record(
            f"job-{number}",
            launched_at=moment - timedelta(minutes=number + 1),
            updated_at=moment - timedelta(minutes=number),
            completed_at=moment - timedelta(minutes=number),
            **{"rows_selected": 1000, "rows_computed": 1000, "versions": (2, 3), **changes},
        )
        for number in range(count)
    ]


def write_errors(
    table: Table, job_id: str, messages: Sequence[str], storage: dict[str, str] | None = None
) -> None:
    errors = [
        {
            "error_id": str(number),
            "job_id": job_id,
            "table_uri": table.uri,
            "table_version": 1,
            "columns": ["v"],
            "udf_name": "f",
            "udf_version": "1",
            "input_columns": ["id"],
            "fragment_id": 0,
            "row_address": 1000 + number,
            "outcome": "skipped",
            "error_type": "ValueError",
            "error_message": message,
            "error_trace": None,
            "attempt": 1,
            "max_attempts": 1,
            "bisect_depth": 0,
            "timestamp": datetime.now(UTC),
        }
        for number, message in enumerate(messages)
    ]
    append_rows(
        DatasetRef.at(table.uri, storage or {}),
        ERRORS,
        pa.Table.from_pylist(errors, schema=ERRORS.schema),
    )


def hostile_place(folder: Path) -> Connection:
    """Makes tables whose names, columns, jobs, errors, messages and views have hostile texts."""
    db = connect(folder)
    table = db.create_table("t", [{"id": i} for i in range(20)])
    for number, text in enumerate(HOSTILE):
        clean = text.replace("\x00", "")
        table.add([{"id": 1}], commit_message=clean, txn_app_id=clean, txn_version=number)
    columns = [text for text in HOSTILE if "\x00" not in text and not {".", "`"} & set(text)]
    odd = db.create_table("<b onclick=1>&", [dict.fromkeys(columns, 1)])
    db.create_materialized_view("v", odd.search(None).select(columns[:2]))
    jobs = [
        job_record(
            text,
            message=text,
            where=text,
            udf_name=text,
            columns=(text,),
            launched_by=text,
            rows_skipped=99,
            **end,
        )
        for text in HOSTILE
        for end in [
            {"completed_at": datetime.now(UTC), "rows_selected": 100, "seconds": {text: 3.0}}
        ]
    ]
    write_jobs(table, jobs)
    write_errors(table, HOSTILE[0], HOSTILE)
    running = job_record("live", status="RUNNING", rows_selected=1000, message=SCRIPT)
    history = JobHistory(DatasetRef.at(table.uri))
    history.save(running)
    return db
