"""Errors that end a job at the first failure, because every range would fail in the same way."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from lance_spark.backfill.task.messages import BackfillSpec, RangeOutcome
from lance_spark.errors import TableUnwritableError, rebuild
from lance_spark.spark_jobs.failures import SparkFailure, is_error
from lance_spark.spark_jobs.run import SparkJobs
from udf_runtime import EnvironmentBuildError


def make_environment(
    spark: SparkSession, spec: BackfillSpec, jobs: SparkJobs, refresh_s: float, beat: Callable[[], object]
) -> None:
    """Builds the UDF's environment on an executor, before any row is read. Runs on the driver.

    The other executors build theirs with their first task. If an earlier job built the environment,
    the function returns at once. Calls `beat` at least every `refresh_s` seconds. If `jobs` were
    stopped, the function returns without an environment: the job was cancelled.

    Raises:
        EnvironmentBuildError: The environment cannot be built.
    """
    environment = spec.environment
    if environment is None or environment.is_known(spark):
        return
    running = jobs.poll_spark_job(lambda: environment.probe(spark), refresh_s)
    while True:
        try:
            next(running)
        except StopIteration as end:
            rows = end.value
            break
        beat()
    if jobs.is_stopped:
        return
    if isinstance(rows, SparkFailure):
        raise EnvironmentBuildError(
            manifest=environment.manifest.name, reason=rows.text, hint="look into the logs of the executors"
        )
    environment.check(spark, rows)


def raise_if_fatal(outcome: RangeOutcome, spec: BackfillSpec) -> None:
    """Raises the error of a range if every other range fails with the same error.

    Raises:
        TableUnwritableError: The store is full, or denies access.
        EnvironmentBuildError: An executor cannot build the UDF's environment.
    """
    message = str(outcome.error).removeprefix(f"{outcome.error_type}: ")
    if is_error(outcome.error_type, TableUnwritableError):
        raise rebuild(TableUnwritableError, (message,), {"uri": spec.snapshot.uri})
    if is_error(outcome.error_type, EnvironmentBuildError) and spec.environment is not None:
        reason = message.removeprefix("The environment cannot be made: ").partition(" Manifest: ")[0]
        name = spec.environment.manifest.name
        raise EnvironmentBuildError(manifest=name, reason=f"on one executor: {reason}", hint="look at that machine")
