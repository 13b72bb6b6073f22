"""What ends a job at its first failure: it would fail every other range alike."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from lance_spark.backfill.driver.scheduler import Scheduler
from lance_spark.backfill.driver.spark_failure import SparkFailure
from lance_spark.backfill.task.messages import BackfillSpec, RangeOutcome
from lance_spark.errors import TableUnwritableError, rebuild
from udf_runtime import EnvironmentBuildError


def make_environment(
    spark: SparkSession, spec: BackfillSpec, scheduler: Scheduler, refresh_s: float, beat: Callable[[], object]
) -> None:
    """Has one executor make the UDF's environment, before any row is read. Runs on the driver.

    The others make theirs with their first task, and so do all where one has for an earlier job.
    Calls `beat` at least every `refresh_s` seconds. Returns without one where the scheduler was
    stopped: then the job was cancelled, and ends as that.

    Raises:
        EnvironmentBuildError: It cannot be made.
    """
    environment = spec.environment
    if environment is None or environment.is_known(spark):
        return
    running = scheduler.run_alone(lambda: environment.probe(spark), refresh_s)
    while True:
        try:
            next(running)
        except StopIteration as end:
            found = end.value
            break
        beat()
    if scheduler.is_stopped:
        return
    if isinstance(found, SparkFailure):
        raise EnvironmentBuildError(
            manifest=environment.manifest.name,
            reason=f"{found.error_type}: {found.message}",
            hint="look into the logs of the executors",
        )
    environment.check(spark, found)


def raise_if_fatal(answer: RangeOutcome, spec: BackfillSpec) -> None:
    """Raises what a range failed of, if every other one fails of it too.

    Raises:
        TableUnwritableError: The store is full, or refuses.
        EnvironmentBuildError: An executor cannot make the UDF's environment.
    """
    kind = str(answer.error_type).rpartition(".")[2]
    message = str(answer.error).removeprefix(f"{answer.error_type}: ")
    if kind == TableUnwritableError.__name__:
        raise rebuild(TableUnwritableError, (message,), {"uri": spec.snapshot.uri})
    if kind == EnvironmentBuildError.__name__ and spec.environment is not None:
        reason = message.removeprefix("The environment cannot be made: ").partition(" Manifest: ")[0]
        name = spec.environment.manifest.name
        raise EnvironmentBuildError(manifest=name, reason=f"on one executor: {reason}", hint="look at that machine")
