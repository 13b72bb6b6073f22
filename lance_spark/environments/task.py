"""The environments of a job's UDFs, on their way to executors: :class:`TaskEnvironment`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.environments.artifacts import TaskArtifacts
from lance_spark.environments.stored import archives_beside, upload_archives
from lance_spark.errors import OptionError
from lance_spark.options.values import byte_size
from lance_spark.session.sessions import application_setting
from lance_spark.storage.objects import LanceObjects
from udf_runtime import UDF, EnvironmentBuildError, Manifest
from udf_runtime.environments.artifact_cache import ArtifactCache
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime.environments.machine_cache import DEFAULT_BYTES, MachineCache
from udf_runtime.environments.variables import Variables, resolve
from udf_runtime.execute.isolation.process import Interpreter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

FOLDER_KEY = "spark.lance.environments.dir"
"""Spark configuration: folder of the environments on each machine; by default
`~/.cache/lance-spark/environments`."""

BYTES_KEY = "spark.lance.environments.maxBytes"
"""Spark configuration: maximum size of all environments on a machine, such as `50g`."""

CacheT = TypeVar("CacheT", bound=MachineCache)

_REFUSAL = pa.schema([pa.field("reason", pa.string()), pa.field("hint", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnvironment:
    """A UDF's environment for its tasks. Picklable.

    Attributes:
        manifest: Contents of the environment.
        archives: Folder of its archives.
        cache: The environments of each machine.
        variables: Values of its environment variables.
    """

    manifest: Manifest
    archives: LanceObjects
    cache: EnvironmentCache
    variables: Variables = field(default_factory=Variables)

    def open(self) -> Interpreter:
        """Returns the Python of the environment, built unless this machine has it. Runs in tasks.

        Raises:
            EnvironmentBuildError: The environment cannot be built.
        """
        return self.cache.open(self.manifest, self.archives, self.variables)

    def is_known(self, spark: SparkSession) -> bool:
        """Tells whether an executor of a session has built the environment for an earlier job."""
        return self in _MADE.get(spark, ())

    def probe(self, spark: SparkSession) -> DataFrame:
        """Returns a DataFrame with a single task to build the environment: no rows mean success."""
        return spark.range(0, 1, 1, 1).mapInArrow(
            _Probe(environment=self), "reason string, hint string"
        )

    def check(self, spark: SparkSession, rows: list[Row]) -> None:
        """Raises the errors in the rows of :meth:`probe`.

        Raises:
            EnvironmentBuildError: The environment cannot be built.
        """
        for row in rows:
            raise EnvironmentBuildError(
                manifest=self.manifest.name, reason=row["reason"], hint=row["hint"]
            )
        _MADE.setdefault(spark, set()).add(self)


class JobEnvironments:
    """The environments of a job's UDFs. Runs on the driver, in a single thread at a time.

    A job reads the values of environment variables once: a function may return a new value each
    time, or ask a service.
    """

    def __init__(self, ref: DatasetRef, spark: SparkSession) -> None:
        """Takes the table of the UDFs, and the session of the job."""
        self._ref = ref
        self._spark = spark
        self._found: dict[Manifest, TaskEnvironment] = {}

    def of(self, udf: UDF) -> TaskEnvironment | None:
        """Returns the environment of a UDF; None for a UDF without environment.

        Raises:
            UdfDefinitionError: A variable has no value, or an archive is missing.
            OptionError: A setting is not valid, or a session SET the setting.
        """
        if udf.manifest is None:
            return None
        if udf.manifest not in self._found:
            upload_archives(udf, self._ref)
            self._found[udf.manifest] = TaskEnvironment(
                manifest=udf.manifest,
                archives=archives_beside(self._ref),
                cache=_make_cache(self._spark, EnvironmentCache),
                variables=resolve(udf.manifest),
            )
        return self._found[udf.manifest]

    def artifacts_of(self, udf: UDF) -> TaskArtifacts | None:
        """Returns the way to the artifacts of a UDF; None for a UDF without artifacts.

        Raises:
            OptionError: As in :meth:`of`.
        """
        if not udf.artifacts:
            return None
        return TaskArtifacts(table=self._ref, cache=_make_cache(self._spark, ArtifactCache))

    def all(self) -> tuple[TaskEnvironment, ...]:
        """Returns the environments requested so far."""
        return tuple(self._found.values())


_MADE: weakref.WeakKeyDictionary[SparkSession, set[TaskEnvironment]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """The function run by Spark on an executor, before any row is read: a failure is an answer.

    Spark would retry an error.
    """

    environment: TaskEnvironment

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Builds the environment for a row."""
        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                self.environment.open()
            except EnvironmentBuildError as error:
                yield pa.RecordBatch.from_pylist(
                    [{"reason": error.reason, "hint": error.hint}], schema=_REFUSAL
                )


def open_interpreter(
    udf: UDF, environment: TaskEnvironment | None, artifacts: TaskArtifacts | None
) -> Interpreter | None:
    """Returns the Python of a UDF with its environment and its artifacts. Runs in tasks.

    None is the executors' own Python without artifacts.

    Raises:
        EnvironmentBuildError: The environment cannot be built.
        ArtifactError: An artifact cannot be copied.
    """
    interpreter = None if environment is None else environment.open()
    if artifacts is None:
        return interpreter
    return replace(interpreter or Interpreter(), copies=artifacts.open(udf))


def _make_cache(spark: SparkSession, kind: type[CacheT]) -> CacheT:
    text = application_setting(spark, BYTES_KEY)
    try:
        max_bytes = DEFAULT_BYTES if text is None else byte_size(text)
    except ValueError:
        raise OptionError(BYTES_KEY, text, "a size in bytes, such as 50g") from None
    return kind(folder=application_setting(spark, FOLDER_KEY) or None, most_bytes=max_bytes)
