"""User-defined functions over Arrow batches, independent of where they run.

This package imports neither Spark nor Lance nor `lance_spark`, so that everything in it can be
tested without a JVM and run in any Python process.
"""

from __future__ import annotations

from udf_runtime.definition import UDF, Columns, Kind, UnpackedUDF, as_udf, chunker, udf, udtf
from udf_runtime.environments.manifest import Manifest
from udf_runtime.errors import (
    CheckpointError,
    EnvironmentBuildError,
    SkipThresholdExceededError,
    UdfDefinitionError,
    UdfFailedError,
    UdfOutputError,
    UdfProcessDiedError,
    UdfRuntimeError,
)
from udf_runtime.policies import (
    Backoff,
    ErrorPolicy,
    Fail,
    Retry,
    Skip,
    fail_fast,
    retry_all,
    retry_transient,
    skip_on_error,
)

GenevaManifest = Manifest
"""The name that a manifest has in Geneva."""

__all__ = [
    "UDF",
    "Backoff",
    "CheckpointError",
    "Columns",
    "EnvironmentBuildError",
    "ErrorPolicy",
    "Fail",
    "GenevaManifest",
    "Kind",
    "Manifest",
    "Retry",
    "Skip",
    "SkipThresholdExceededError",
    "UdfDefinitionError",
    "UdfFailedError",
    "UdfOutputError",
    "UdfProcessDiedError",
    "UdfRuntimeError",
    "UnpackedUDF",
    "as_udf",
    "chunker",
    "fail_fast",
    "retry_all",
    "retry_transient",
    "skip_on_error",
    "udf",
    "udtf",
]
