"""Spark jobs whose tasks are known by number, and answer with a row each: both sides of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_spark.backfill.driver.spark_failure import MAX_ATTEMPTS, SparkFailure, failure_of
from lance_spark.session.sessions import active_in_thread, cancel, tagged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJob:
    """How a Spark job is found and shown: the tag that cancels it, and what the Spark UI says."""

    tag: str
    description: str


def collect_answers(
    spark: SparkSession,
    frame: Callable[[], DataFrame],
    job: NamedJob,
    *,
    check: Callable[[], None] = lambda: None,
    explain: Callable[[SparkFailure], None] = lambda _: None,
) -> list[Any]:
    """Runs a Spark job, again where its tasks died, and returns the first column of its rows.

    An interrupt cancels it.

    Args:
        spark: The session.
        frame: Makes the DataFrame; called for each attempt.
        job: Tag and description.
        check: Raises where no further Spark job is to be started.
        explain: Raises another error for a failure.
    """
    for attempt in itertools.count(1):
        check()
        with active_in_thread(spark), tagged(spark, job.tag, job.description):
            try:
                return [row[0] for row in frame().collect()]
            except Exception as error:
                failure = failure_of(error)
                try:
                    explain(failure)
                except Exception as explained:
                    raise explained from error
                # In plain local[N] Spark gives a job up when a task dies.
                if not failure.retryable or attempt == MAX_ATTEMPTS:
                    raise
                _LOG.warning("a Spark job (%s) failed, and is submitted again: %s", job.description, failure.message)
            except BaseException:  # the user interrupted
                cancel(spark, job.tag)
                raise
    raise AssertionError


def numbers_of(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yields the numbers of the tasks that are to be worked on. Runs on an executor."""
    for batch in batches:
        yield from batch.column(0).to_numpy().tolist()
