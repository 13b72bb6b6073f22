"""Error policies of UDFs, and sizes of their batches.

The classes are plain values, and no code here runs a UDF, waits, or keeps a thread.
"""

from __future__ import annotations

from udf_runtime.policies.backoff import Backoff, BackoffKind
from udf_runtime.policies.batch_size import AdaptiveSize, CheckpointSizes, checkpoint_bounds
from udf_runtime.policies.error_policy import (
    Decision,
    ErrorPolicy,
    OnError,
    fail_fast,
    retry_all,
    retry_transient,
    skip_on_error,
)
from udf_runtime.policies.http import RetryHttp, retry_http
from udf_runtime.policies.matchers import Fail, Matcher, Retry, Skip
from udf_runtime.policies.rate_limit import MinuteBudget, RateLimit

__all__ = [
    "AdaptiveSize",
    "Backoff",
    "BackoffKind",
    "CheckpointSizes",
    "Decision",
    "ErrorPolicy",
    "Fail",
    "Matcher",
    "MinuteBudget",
    "OnError",
    "RateLimit",
    "Retry",
    "RetryHttp",
    "Skip",
    "checkpoint_bounds",
    "fail_fast",
    "retry_all",
    "retry_http",
    "retry_transient",
    "skip_on_error",
]
