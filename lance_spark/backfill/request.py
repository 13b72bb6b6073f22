"""What a caller of `backfill` asks for, checked once.

Parameters of the specification that mean nothing on Spark are refused here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from lance_spark.backfill.task.messages import OnStale
from lance_spark.errors import OptionError
from lance_spark.rows.input_reader import BlobReadStrategy

DEFAULT_CHECKPOINT_ROWS = 10240
WHOLE_FRAGMENT_ROWS = 1 << 32
"""More rows than any fragment has: what `batch_size=0` of the specification means."""

DEFAULT_FLUSH_S = 10.0
DEFAULT_COMMIT_GRANULARITY = 64
DEFAULT_CONCURRENCY = 8
DEFAULT_REFRESH_S = 2.0
DEFAULT_BLOB_BUFFER_BYTES = 512 << 20

_JOB_ID_CHARS = 50
"""Its name is part of file names, where a character may take three."""

ADMISSION_CHECK = "LANCE_SPARK_ADMISSION__CHECK"
ADMISSION_STRICT = "LANCE_SPARK_ADMISSION__STRICT"
BLOB_BUFFER = "LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRequest:
    """The parameters of one backfill; :meth:`lance_spark.Table.backfill` documents them.

    Attributes:
        columns: Target columns, as they were named.
        udf: The UDF to use instead of the stored one, or None.
        where: Filter in Lance SQL, or None.
        concurrency: Most tasks at once, or None for all slots.
        threads: Threads per task.
        read_version: Version to read, or None for the latest.
        num_frags: Fragments to process, or None for all.
        skip_frags: Fragments before the first.
        commit_granularity: Fragments per commit, or None for one commit at the end.
        task_size: Rows per task, or None.
        checkpoint_size: Rows per checkpoint, or None.
        min_checkpoint_size: Lower bound of adaptive sizing, or None.
        max_checkpoint_size: Upper bound of adaptive sizing, or None.
        flush_s: Seconds after which results are persisted.
        blob_strategy: How blob inputs are read.
        blob_buffer_bytes: Most bytes of blobs held at once.
        job_id: Id of the job, or None for a new one.
        refresh_s: Seconds between looks at running tasks.
        admission_check: Whether resources are checked first.
        admission_strict: Whether insufficient resources are an error.
        save_job: Whether the job appears in the history.
        stale: Whether rows are selected that are out of date.
        on_stale: Whether rows whose inputs concurrent writers change are computed again, or are
            NULL.
        commit_max_retries: Rounds without progress after which a commit gives up, or None for the
            default.
        commit_timeout_s: Seconds after which a commit gives up that keeps losing races, or None for
            the default.
        protect_snapshot: Whether the version that is read is tagged while the job runs.
        plan_only: Whether only a plan is wanted: then a stored UDF is not loaded, which would run
            code.
    """

    columns: tuple[str, ...]
    udf: object | None = None
    where: str | None = None
    concurrency: int | None = DEFAULT_CONCURRENCY
    threads: int = 1
    read_version: int | None = None
    num_frags: int | None = None
    skip_frags: int = 0
    commit_granularity: int | None = DEFAULT_COMMIT_GRANULARITY
    task_size: int | None = None
    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    flush_s: float = DEFAULT_FLUSH_S
    blob_strategy: BlobReadStrategy = "auto"
    blob_buffer_bytes: int = DEFAULT_BLOB_BUFFER_BYTES
    job_id: str | None = None
    refresh_s: float = DEFAULT_REFRESH_S
    admission_check: bool = True
    admission_strict: bool = True
    save_job: bool = True
    stale: bool = False
    on_stale: OnStale = "recompute"
    commit_max_retries: int | None = None
    commit_timeout_s: float | None = None
    protect_snapshot: bool = False
    plan_only: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("concurrency", self.concurrency),
            ("num_frags", self.num_frags),
            ("commit_granularity", self.commit_granularity),
            ("task_size", self.task_size),
            ("checkpoint_size", self.checkpoint_size),
            ("min_checkpoint_size", self.min_checkpoint_size),
            ("max_checkpoint_size", self.max_checkpoint_size),
            ("read_version", self.read_version),
        ):
            if value is not None:
                _at_least(name, value, 1)
        _at_least("intra_applier_concurrency", self.threads, 1)
        _at_least("skip_frags", self.skip_frags, 0)
        if self.commit_max_retries is not None:
            _at_least("commit_max_retries", self.commit_max_retries, 0)
        if self.commit_timeout_s is not None:
            _seconds("commit_timeout", self.commit_timeout_s, allow_zero=False)
        if self.on_stale not in get_args(OnStale):
            raise OptionError("on_stale", repr(self.on_stale), "recompute or null")
        _at_least("blob_read_buffer_size", self.blob_buffer_bytes, 1)
        _seconds("batch_checkpoint_flush_interval_seconds", self.flush_s, allow_zero=True)
        _seconds("refresh_status_secs", self.refresh_s, allow_zero=False)
        if self.blob_strategy not in get_args(BlobReadStrategy):
            raise OptionError("blob_read_strategy", str(self.blob_strategy), "auto, legacy or range")
        if self.where is not None and (not isinstance(self.where, str) or not self.where.strip()):
            raise OptionError(
                "where",
                repr(self.where),
                "a filter in Lance SQL, such as lang = 'en'; None selects rows without a value",
            )
        usable = self.job_id is None or (isinstance(self.job_id, str) and 0 < len(self.job_id.strip()) <= _JOB_ID_CHARS)
        if not usable:
            raise OptionError(
                "job_id", repr(self.job_id), f"a text that identifies the job, of at most {_JOB_ID_CHARS} characters"
            )
        low, high = self.min_checkpoint_size, self.max_checkpoint_size
        if low is not None and high is not None and low > high:
            raise OptionError(
                "min_checkpoint_size", str(low), f"at most max_checkpoint_size, {high}", problem="is too large"
            )


def columns_of(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the named columns.

    Raises:
        OptionError: There is none, or one is no name.
    """
    names = tuple(columns) if isinstance(columns, (list, tuple)) else (columns,)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise OptionError("columns", repr(columns), "the name of a column, or a list of sibling columns")
    return names


def request_of(parameters: Mapping[str, Any]) -> BackfillRequest:
    """Returns the request of a call of :meth:`lance_spark.Table.backfill`, from its parameters.

    Raises:
        OptionError: A parameter or an environment variable is not valid.
    """
    diversity, timeout = parameters["task_shuffle_diversity"], parameters["commit_timeout"]
    if diversity is not None:
        raise OptionError(
            "task_shuffle_diversity",
            str(diversity),
            "nothing: it mixes fragments among actors of another engine; on Spark any free slot takes the next range",
            problem="has no meaning on Spark",
        )
    flush_s = parameters["batch_checkpoint_flush_interval_seconds"]
    renamed = {
        "columns": columns_of(parameters["columns"]),
        "threads": parameters["intra_applier_concurrency"],
        "admission_check": flag_of(parameters["_admission_check"], ADMISSION_CHECK),
        "admission_strict": flag_of(parameters["_admission_strict"], ADMISSION_STRICT),
        "refresh_s": parameters["refresh_status_secs"],
        "flush_s": DEFAULT_FLUSH_S if flush_s is None else flush_s,
        "blob_strategy": parameters["blob_read_strategy"],
        "blob_buffer_bytes": blob_buffer_of(parameters["blob_read_buffer_size"]),
        "save_job": parameters["_enable_job_tracker_saves"],
        "checkpoint_size": _checkpoint_size(parameters["checkpoint_size"], parameters["batch_size"]),
        "commit_timeout_s": None if timeout is None else timeout.total_seconds(),
    }
    same = {field.name: parameters[field.name] for field in fields(BackfillRequest) if field.name in parameters}
    return BackfillRequest(**{**same, **renamed})


def _checkpoint_size(checkpoint_size: int | None, batch_size: int | None) -> int | None:
    """Returns the rows per checkpoint, of the parameter or its deprecated name."""
    if batch_size is None:
        return checkpoint_size
    if checkpoint_size is not None:
        raise OptionError(
            "batch_size",
            str(batch_size),
            "checkpoint_size alone",
            problem="is the old name of checkpoint_size, given too",
        )
    warnings.warn("batch_size is deprecated, say checkpoint_size", DeprecationWarning, stacklevel=4)
    return WHOLE_FRAGMENT_ROWS if batch_size == 0 and not isinstance(batch_size, bool) else batch_size


def flag_of(value: bool | None, variable: str) -> bool:
    """Returns a flag: as given, else as the environment says, else true."""
    if value is not None:
        return bool(value)
    text = os.environ.get(variable, "true").strip().lower()
    if text not in ("true", "1", "yes", "false", "0", "no"):
        raise OptionError(variable, text, "true or false")
    return text in ("true", "1", "yes")


def blob_buffer_of(value: int | None) -> int:
    """Returns the size of the blob buffer: as given, else as the environment says, else 512 MiB."""
    if value is not None:
        return value
    text = os.environ.get(BLOB_BUFFER)
    if text is None:
        return DEFAULT_BLOB_BUFFER_BYTES
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(BLOB_BUFFER, text, "a number of bytes, 1 or more")
    return int(text)


def _at_least(name: str, value: Any, least: int) -> None:  # noqa: ANN401 - users pass anything
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(name, repr(value), f"a whole number, {least} or more")


def _seconds(name: str, value: Any, *, allow_zero: bool) -> None:  # noqa: ANN401 - users pass anything
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
    if not usable or (value == 0 and not allow_zero):
        raise OptionError(name, repr(value), "a number of seconds" + (", 0 or more" if allow_zero else " above 0"))
