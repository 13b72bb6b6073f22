"""Spark jobs whose tasks answer a few rows each: :func:`collected`. Runs on the driver."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from lance_spark.backfill.driver.scheduler import MAX_ATTEMPTS
from lance_spark.backfill.driver.spark_failure import failure_of
from lance_spark.session.sessions import active_in_thread, cancel, tagged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_LOG = logging.getLogger(__name__)


def collected(
    spark: SparkSession,
    frame: Callable[[], DataFrame],
    *,
    tag: str,
    description: str,
    check: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Returns the rows of a DataFrame, submitted again where a task's process died.

    In plain `local[N]` Spark gives a job up when a task dies. `check` raises where no further Spark
    job is to be started. An interrupt cancels the job.
    """
    for attempt in itertools.count(1):
        check()
        with active_in_thread(spark), tagged(spark, tag, description):
            try:
                return frame().collect()
            except Exception as error:
                failure = failure_of(error)
                if not failure.retryable or attempt == MAX_ATTEMPTS:
                    raise
                _LOG.warning("a Spark job failed, and is submitted again (%s): %s", description, failure.message)
            except BaseException:
                cancel(spark, tag)
                raise
    raise AssertionError
