"""Artifacts of UDFs: their listing on the driver, and their copies for tasks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError
from lance_spark.namespaces.access import lasting_options
from lance_spark.storage.file_systems import FileSystem, file_system_of
from udf_runtime import UDF, ArtifactError
from udf_runtime.definition.artifacts import Artifact, ArtifactCopy
from udf_runtime.environments.artifact_cache import ArtifactCache, list_artifact

_STORES = ({"s3", "s3a", "s3+ddb"}, {"gs", "gcs"}, {"az", "abfs", "abfss"})
"""Schemes of a store, in Lance and in PyArrow."""

_REMEDY = "copy the files of other stores to an object store, or to a mounted file system"


def list_artifacts(udf: UDF, ref: DatasetRef) -> UDF:
    """Returns a UDF with the files of its artifacts. Runs on the driver, at a registration.

    Object stores are listed, with a request per file for its ETag, and not read.

    Args:
        udf: The UDF; listed artifacts stay.
        ref: The table, whose storage options also serve for artifacts in the same kind of store.

    Raises:
        UdfDefinitionError: A location has no file, or the store refused.
        OptionError: PyArrow does not support the store.
    """
    if all(artifact.files for artifact in udf.artifacts):
        return udf
    return udf.with_artifacts(
        tuple(
            list_artifact(artifact, *_find_source(artifact.location, ref))
            for artifact in udf.artifacts
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArtifacts:
    """The way to the artifacts of a job's UDF, for its tasks. Picklable.

    Attributes:
        table: The table of the job, with the storage options.
        cache: The copies on each machine.
    """

    table: DatasetRef
    cache: ArtifactCache

    def open(self, udf: UDF) -> tuple[ArtifactCopy, ...]:
        """Returns the copies of a UDF's artifacts on this machine. Runs in tasks.

        The first task on a machine copies the files, and concurrent tasks wait.

        Raises:
            ArtifactError: An artifact cannot be copied.
        """
        return tuple(self._open(artifact) for artifact in udf.artifacts)

    def _open(self, artifact: Artifact) -> ArtifactCopy:
        try:
            return self.cache.open(
                artifact, functools.partial(_find_source, artifact.location, self.table)
            )
        except OptionError as error:
            raise ArtifactError(
                artifact=artifact.name,
                location=artifact.location,
                reason=str(error),
                hint="Give another location.",
            ) from error


def _find_source(location: str, ref: DatasetRef) -> tuple[FileSystem, str]:
    """Returns file system and path of an artifact.

    The storage options of the table go to the same kind of store. Other stores take their
    credentials from the environment of the process.
    """
    scheme, table_scheme = location.partition("://")[0], ref.uri.partition("://")[0]
    is_same = any({scheme, table_scheme} <= store for store in _STORES)
    return file_system_of(
        location,
        lasting_options(ref.storage) if is_same else {},
        option="artifacts",
        remedy=_REMEDY,
    )
