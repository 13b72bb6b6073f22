"""User-defined functions over Arrow batches, for any engine.

This package imports neither Spark nor Lance nor `lance_spark`. Its code runs in any Python process
and is tested without a JVM.
"""

from __future__ import annotations

from udf_runtime.definition import UDF, Columns, Kind, UnpackedUDF, as_udf, chunker, udf, udtf
from udf_runtime.environments.manifest import Manifest
from udf_runtime.errors import (
    ArtifactError,
    CheckpointError,
    DevicesBusyError,
    EnvironmentBuildError,
    ServiceUnavailableError,
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
    RateLimit,
    Retry,
    RetryHttp,
    Skip,
    fail_fast,
    retry_all,
    retry_http,
    retry_transient,
    skip_on_error,
)

GenevaManifest = Manifest
"""The name of :class:`Manifest` in Geneva."""

__all__ = [
    "UDF",
    "ArtifactError",
    "Backoff",
    "CheckpointError",
    "Columns",
    "DevicesBusyError",
    "EnvironmentBuildError",
    "ErrorPolicy",
    "Fail",
    "GenevaManifest",
    "Kind",
    "Manifest",
    "RateLimit",
    "Retry",
    "RetryHttp",
    "ServiceUnavailableError",
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
    "retry_http",
    "retry_transient",
    "skip_on_error",
    "udf",
    "udtf",
]
