"""The environments of a job's UDFs, on their way to executors: :class:`TaskEnvironment`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.environments.stored import archives_beside, upload_archives
from lance_spark.errors import OptionError
from lance_spark.objects import LanceObjects
from lance_spark.options import byte_size
from lance_spark.session.application import application_setting
from udf_runtime import UDF, EnvironmentBuildError, Manifest
from udf_runtime.environments.host import DEFAULT_BYTES, EnvironmentCache
from udf_runtime.environments.variables import Variables, resolve
from udf_runtime.execute.isolation.interpreter import Interpreter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

FOLDER_KEY = "spark.lance.environments.dir"
"""Spark configuration: folder of the environments on each machine; by default
`~/.cache/lance-spark/environments`."""

BYTES_KEY = "spark.lance.environments.maxBytes"
"""Spark configuration: bytes that they may have together on a machine, as `50g`."""

_REFUSAL = pa.schema([pa.field("reason", pa.string()), pa.field("hint", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnvironment:
    """What a task needs to run a UDF in its environment. Picklable.

    Attributes:
        manifest: What the environment has.
        archives: Where its archives are.
        cache: The environments of each machine.
        variables: Values of its environment variables.
    """

    manifest: Manifest
    archives: LanceObjects
    cache: EnvironmentCache
    variables: Variables = field(default_factory=Variables)

    def open(self) -> Interpreter:
        """Returns the Python of the environment, made unless this machine has it. Runs in tasks.

        Raises:
            EnvironmentBuildError: It cannot be made.
        """
        return self.cache.open(self.manifest, self.archives, self.variables)

    def is_known(self, spark: SparkSession) -> bool:
        """Tells whether an executor of a session has made the environment for an earlier job."""
        return self in _MADE.get(spark, ())

    def probe(self, spark: SparkSession) -> DataFrame:
        """Returns a DataFrame whose one task makes the environment: without rows where it can."""
        return spark.range(0, 1, 1, 1).mapInArrow(_Probe(environment=self), "reason string, hint string")

    def check(self, spark: SparkSession, found: list[Row]) -> None:
        """Raises what the rows of :meth:`probe` say.

        Raises:
            EnvironmentBuildError: The environment cannot be made.
        """
        for row in found:
            raise EnvironmentBuildError(manifest=self.manifest.name, reason=row["reason"], hint=row["hint"])
        _MADE.setdefault(spark, set()).add(self)


class JobEnvironments:
    """The environments of the UDFs of one job. Runs on the driver, in one thread at a time.

    A job takes the values of environment variables once: a function may return another one each
    time, or ask a service for it.
    """

    def __init__(self, ref: DatasetRef, spark: SparkSession) -> None:
        """Takes the table of the UDFs, and the session that runs the job."""
        self._ref = ref
        self._spark = spark
        self._found: dict[Manifest, TaskEnvironment] = {}

    def of(self, udf: UDF) -> TaskEnvironment | None:
        """Returns the environment of a UDF; None where it has none.

        Raises:
            UdfDefinitionError: A variable has no value, or an archive is not there.
            OptionError: A setting is not valid, or a session SET it.
        """
        if udf.manifest is None:
            return None
        if udf.manifest not in self._found:
            upload_archives(udf, self._ref)
            self._found[udf.manifest] = TaskEnvironment(
                manifest=udf.manifest,
                archives=archives_beside(self._ref),
                cache=_cache(self._spark),
                variables=resolve(udf.manifest),
            )
        return self._found[udf.manifest]

    def all(self) -> tuple[TaskEnvironment, ...]:
        """Returns those that have been asked for."""
        return tuple(self._found.values())


_MADE: weakref.WeakKeyDictionary[SparkSession, set[TaskEnvironment]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """What Spark runs on one executor, before any row is read: a failure is an answer.

    Otherwise Spark would try again.
    """

    environment: TaskEnvironment

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Makes the environment for one row."""
        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                self.environment.open()
            except EnvironmentBuildError as error:
                yield pa.RecordBatch.from_pylist([{"reason": error.reason, "hint": error.hint}], schema=_REFUSAL)


def _cache(spark: SparkSession) -> EnvironmentCache:
    text = application_setting(spark, BYTES_KEY)
    try:
        most = DEFAULT_BYTES if text is None else byte_size(text)
    except ValueError:
        raise OptionError(BYTES_KEY, text, "a size in bytes, such as 50g") from None
    return EnvironmentCache(folder=application_setting(spark, FOLDER_KEY) or None, most_bytes=most)
