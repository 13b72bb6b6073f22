"""The request of a caller of `backfill`, validated once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from datetime import timedelta
from typing import Any, Literal, get_args

from lance_spark.backfill.task.messages import OnStale
from lance_spark.commit.app_transaction import AppTransaction
from lance_spark.display import warn_caller
from lance_spark.errors import OptionError
from lance_spark.options.io_options import environment_flag
from lance_spark.rows.input_reader import BlobReadStrategy
from lance_spark.session.sessions import session_time_zone
from udf_runtime import UDF, Manifest

WHOLE_FRAGMENT_ROWS = 1 << 32
"""More rows than any fragment has: the meaning of `batch_size=0`."""

DEFAULT_FLUSH_S = 10.0
DEFAULT_COMMIT_GRANULARITY = 64
DEFAULT_CONCURRENCY = 8
DEFAULT_REFRESH_S = 2.0
DEFAULT_BLOB_BUFFER_BYTES = 512 << 20

_JOB_ID_CHARS = 50
"""Job ids are parts of file names. A character of an id takes up to three in the name."""

ADMISSION_CHECK = "LANCE_SPARK_ADMISSION__CHECK"
ADMISSION_STRICT = "LANCE_SPARK_ADMISSION__STRICT"
BLOB_BUFFER = "LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE"

_LEAST = {
    "concurrency": 1,
    "intra_applier_concurrency": 1,
    "read_version": 1,
    "num_frags": 1,
    "skip_frags": 0,
    "commit_granularity": 1,
    "task_size": 1,
    "checkpoint_size": 1,
    "min_checkpoint_size": 1,
    "max_checkpoint_size": 1,
    "blob_read_buffer_size": 1,
    "commit_max_retries": 0,
    "max_calls": 1,
}
"""The parameters with whole numbers, and their minimums."""

_NEVER_NONE = ("intra_applier_concurrency", "skip_frags", "blob_read_buffer_size")


@dataclass(frozen=True)
class BackfillParameters:
    """The checked parameters of :meth:`lance_spark.Table.backfill`, documented by the method.

    Raises:
        OptionError: A parameter or an environment variable is not valid.
    """

    columns: str | Sequence[str]
    _: KW_ONLY
    udf: UDF | None = None
    where: str | None = None
    concurrency: int | None = DEFAULT_CONCURRENCY
    intra_applier_concurrency: int = 1
    _admission_check: bool | None = None
    _admission_strict: bool | None = None
    refresh_status_secs: float = DEFAULT_REFRESH_S
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    batch_checkpoint_flush_interval_seconds: float | None = None
    blob_read_strategy: Literal["auto", "legacy", "range"] = "auto"
    blob_read_buffer_size: int | None = None
    _enable_job_tracker_saves: bool = True
    job_id: str | None = None
    commit_granularity: int | None = DEFAULT_COMMIT_GRANULARITY
    read_version: int | None = None
    task_shuffle_diversity: int | None = None
    batch_size: int | None = None
    checkpoint_size: int | None = None
    task_size: int | None = None
    num_frags: int | None = None
    skip_frags: int = 0
    stale: bool = False
    on_stale: Literal["recompute", "null"] = "recompute"
    commit_max_retries: int | None = None
    commit_timeout: timedelta | None = None
    protect_snapshot: bool = False
    max_calls: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None

    def __post_init__(self) -> None:
        if self.task_shuffle_diversity is not None:
            accepted = (
                "nothing: it mixes fragments among actors of another engine; on Spark any free slot takes the next "
                "range"
            )
            raise OptionError(
                "task_shuffle_diversity",
                self.task_shuffle_diversity,
                accepted,
                problem="has no meaning on Spark",
            )
        flush_s = self.batch_checkpoint_flush_interval_seconds
        resolved = {
            "columns": columns_of(self.columns),
            "checkpoint_size": _checkpoint_size(self.checkpoint_size, self.batch_size),
            "batch_size": None,
            "blob_read_buffer_size": blob_buffer_of(self.blob_read_buffer_size),
            "_admission_check": flag_of(self._admission_check, ADMISSION_CHECK),
            "_admission_strict": flag_of(self._admission_strict, ADMISSION_STRICT),
            "batch_checkpoint_flush_interval_seconds": DEFAULT_FLUSH_S
            if flush_s is None
            else flush_s,
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        self._check()

    @property
    def admission_check(self) -> bool:
        """Whether to compare the resources of the UDF with those of the cluster."""
        return bool(self._admission_check)

    @property
    def admission_strict(self) -> bool:
        """Whether too few resources are an error."""
        return bool(self._admission_strict)

    @property
    def enable_job_tracker_saves(self) -> bool:
        """Whether the history of the table has the job."""
        return self._enable_job_tracker_saves

    @property
    def transaction(self) -> AppTransaction | None:
        """The transaction of an application, or None."""
        return AppTransaction.of(self.txn_app_id, self.txn_version)

    def _check(self) -> None:
        self._check_numbers()
        if self.commit_timeout is not None:
            _check_seconds("commit_timeout", self.commit_timeout.total_seconds(), "above 0")
        flush_s = self.batch_checkpoint_flush_interval_seconds
        _check_seconds("batch_checkpoint_flush_interval_seconds", flush_s, "0 or more")
        _check_seconds("refresh_status_secs", self.refresh_status_secs, "above 0")
        self._check_budget()
        if self.on_stale not in get_args(OnStale):
            raise OptionError("on_stale", self.on_stale, "recompute or null")
        if self.blob_read_strategy not in get_args(BlobReadStrategy):
            raise OptionError(
                "blob_read_strategy", self.blob_read_strategy, "auto, legacy or range"
            )
        self._check_texts()
        low, high = self.min_checkpoint_size, self.max_checkpoint_size
        if low is not None and high is not None and low > high:
            accepted = f"at most max_checkpoint_size, {high}"
            raise OptionError("min_checkpoint_size", low, accepted, problem="is too large")

    def _check_budget(self) -> None:
        if self.max_seconds is not None:
            _check_seconds("max_seconds", self.max_seconds, "above 0")
        cost = self.max_cost
        is_number = isinstance(cost, (int, float)) and not isinstance(cost, bool)
        if cost is not None and not (is_number and 0 < cost < float("inf")):
            raise OptionError("max_cost", cost, "a number above 0, in the unit of @udf(cost=)")

    def _check_numbers(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name not in _NEVER_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(name, value, f"a whole number, {least} or more")

    def _check_texts(self) -> None:
        if self.where is not None and (not isinstance(self.where, str) or not self.where.strip()):
            accepted = (
                "a filter in Lance SQL, such as lang = 'en'; None selects rows without a value"
            )
            raise OptionError("where", self.where, accepted)
        job_id = self.job_id
        if job_id is not None and not (
            isinstance(job_id, str) and 0 < len(job_id.strip()) <= _JOB_ID_CHARS
        ):
            accepted = f"a text that identifies the job, of at most {_JOB_ID_CHARS} characters"
            raise OptionError("job_id", job_id, accepted)
        transaction = self.transaction
        if job_id is None and transaction is not None:
            # After a crash, the repeated call reuses the results of the interrupted job.
            object.__setattr__(self, "job_id", transaction.job_id)


@dataclass(frozen=True, kw_only=True)
class WaitingBackfill(BackfillParameters):
    """The parameters of :meth:`lance_spark.Table.backfill`."""

    timeout: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class StartedBackfill(BackfillParameters):
    """The parameters of :meth:`lance_spark.Table.backfill_async`."""

    _return_future: bool = False


@dataclass(frozen=True, kw_only=True)
class BackfillRequest(BackfillParameters):
    """Parameters of a backfill with the context of the table.

    Attributes:
        manifest: The environment of a passed UDF, for a column without a UDF.
        time_zone: Returns the time zone of the session, for a passed UDF of PySpark.
        plan_only: Whether a stored UDF is not loaded, because a load runs code.
        is_sample: Whether the job computes `max_calls` rows for an estimate, and commits nothing.
    """

    columns: tuple[str, ...]
    batch_checkpoint_flush_interval_seconds: float = DEFAULT_FLUSH_S
    blob_read_buffer_size: int = DEFAULT_BLOB_BUFFER_BYTES
    manifest: Manifest | None = None
    time_zone: Callable[[], str] = session_time_zone
    plan_only: bool = False
    is_sample: bool = False

    @staticmethod
    def of(parameters: BackfillParameters) -> BackfillRequest:
        """Returns the request of a call."""
        return BackfillRequest(
            **{field.name: getattr(parameters, field.name) for field in fields(BackfillParameters)}
        )


def columns_of(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the named columns.

    Raises:
        OptionError: No column is named, or a name is not valid.
    """
    names = tuple(columns) if isinstance(columns, (list, tuple)) else (columns,)
    if (
        not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) != len(names)
    ):
        raise OptionError("columns", columns, "the name of a column, or a list of sibling columns")
    return names


def _checkpoint_size(checkpoint_size: int | None, batch_size: int | None) -> int | None:
    """Returns the rows per checkpoint from the parameter or its deprecated name."""
    if batch_size is None:
        return checkpoint_size
    if checkpoint_size is not None:
        problem = "is the old name of checkpoint_size, given too"
        raise OptionError("batch_size", batch_size, "checkpoint_size alone", problem=problem)
    warn_caller("batch_size is deprecated, say checkpoint_size", DeprecationWarning)
    return (
        WHOLE_FRAGMENT_ROWS if batch_size == 0 and not isinstance(batch_size, bool) else batch_size
    )


def flag_of(value: bool | None, variable: str) -> bool:
    """Returns a flag: the value, else the environment variable, else true."""
    return environment_flag(variable, default=True) if value is None else bool(value)


def blob_buffer_of(value: int | None) -> int:
    """Returns the blob buffer's size: the value, else the environment variable, else 512 MiB."""
    if value is not None:
        return value
    text = os.environ.get(BLOB_BUFFER)
    if text is None:
        return DEFAULT_BLOB_BUFFER_BYTES
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(BLOB_BUFFER, text, "a number of bytes, 1 or more")
    return int(text)


def _check_seconds(name: str, value: Any, least: str) -> None:  # noqa: ANN401 - users pass anything
    usable = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value < float("inf")
    )
    if not usable or (value == 0 and least == "above 0"):
        raise OptionError(name, value, f"a number of seconds, {least}")
