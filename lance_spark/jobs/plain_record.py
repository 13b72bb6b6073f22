"""Jobs without checkpoints in the history of a table: upkeep, and casts of columns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lance_spark.commit.attempt import this_user
from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError
from lance_spark.jobs.history import JobHistory, this_process
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import Status
from lance_spark.locations import is_local
from lance_spark.staging.area import new_id
from lance_spark.storage.parallel_calls import begin_call


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Progress of a job, by the names of a job's record."""

    versions: tuple[int, ...] = ()
    fragments_total: int = 0
    fragments_done: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def noted(
    ref: DatasetRef,
    job_id: str,
    job_type: str,
    *,
    read_version: int,
    done: Callable[[], Done],
    columns: tuple[str, ...] = (),
) -> Iterator[Callable[[], None]]:
    """Records a job of the table, at its beginning and at its end.

    Runs on the driver. Yields a function that waits for the first record. The block calls the
    function before its first change of the table. Only the first record must succeed at once.

    Raises:
        LanceSparkError: The history cannot be written.
    """
    history, moment = JobHistory(ref), datetime.now(UTC)
    record = JobRecord(
        job_id=job_id,
        job_type=job_type,
        status="RUNNING",
        columns=columns,
        udf_name="",
        udf_version="",
        key="",
        where=None,
        read_version=read_version,
        staging_id=new_id(),
        launched_at=moment,
        updated_at=moment,
        launched_by=this_user(),
        process=this_process(),
        fragments_total=done().fragments_total,
    )
    await_start = begin_call(ref.uri, functools.partial(history.save, record))
    if is_local(ref.uri):
        await_start()
    status: Status = "FAILED"
    message: str | None = None
    try:
        with history.beating(record.staging_id, done):
            yield await_start
        status = "DONE"
    except BaseException as error:
        status = "PARTIAL" if done().versions else "FAILED"
        message = f"{type(error).__name__}: {error}"
        raise
    finally:
        with contextlib.suppress(OSError, LanceSparkError):  # the block has raised the error
            await_start()
        moment = datetime.now(UTC)
        facts = {field.name: getattr(done(), field.name) for field in dataclasses.fields(Done)}
        ended = dataclasses.replace(
            record, status=status, message=message, updated_at=moment, completed_at=moment, **facts
        )
        history.save(ended)
