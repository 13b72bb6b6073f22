"""What a caller of `load_columns` asks for, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lance_spark.backfill.request import (
    ADMISSION_CHECK,
    ADMISSION_STRICT,
    DEFAULT_CONCURRENCY,
    DEFAULT_REFRESH_S,
    BackfillRequest,
    columns_of,
    flag_of,
)
from lance_spark.errors import OptionError

SourceFormat = Literal["parquet", "lance", "ipc"]
OnMissing = Literal["carry", "null", "error"]

DEFAULT_INTERVAL_S = 60.0
"""Seconds after which joined values are persisted: more than a UDF's, as they come quickly."""

ALL_ROWS = "1=1"
"""The rows that a load selects, as a filter: also those that have a value."""

_DEFAULTS = {
    "concurrency": DEFAULT_CONCURRENCY,
    "refresh_status_secs": DEFAULT_REFRESH_S,
    "enable_job_tracker_saves": True,
    **dict.fromkeys(("checkpoint_size", "min_checkpoint_size", "max_checkpoint_size", "checkpoint_interval_seconds")),
    **dict.fromkeys(("_loader_cpus", "_loader_memory", "job_id", "commit_granularity", "task_size")),
}
"""Of the parameters that a plan does not take."""

_SIZES = ("checkpoint_size", "min_checkpoint_size", "max_checkpoint_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The parameters that :meth:`lance_spark.Table.load_columns` documents, checked.

    Attributes:
        keys: The columns by which rows are matched.
        columns: The columns that are loaded, named alike in the source and in the table.
        source_format: Format of files, or None where their names tell.
        on_missing: What becomes of a row without a match.
        cpus: Processor cores of one loading task, or None.
        memory: Bytes of one loading task, or None.
        checkpoint_rows: Least and most rows of a checkpoint; None where only bytes and time bound
            it.
        job: How the job is run.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    source_format: SourceFormat | None
    on_missing: OnMissing
    cpus: float | None
    memory: int | None
    checkpoint_rows: tuple[int, int | None]
    job: BackfillRequest


def load_request_of(parameters: Mapping[str, Any]) -> LoadRequest:
    """Returns the request of a call of `load_columns`, from its parameters.

    Raises:
        OptionError: A parameter is not valid.
    """
    parameters = {**_DEFAULTS, **parameters}
    keys, columns = _names("pk", parameters["pk"]), _names("columns", parameters["columns"])
    both = sorted(set(keys) & set(columns))
    if both:
        raise OptionError("columns", ", ".join(both), "columns other than the key's")
    source_format, on_missing = parameters["source_format"], parameters["on_missing"]
    if source_format is not None and source_format not in get_args(SourceFormat):
        raise OptionError("source_format", source_format, "parquet, lance or ipc; None looks at the names")
    if on_missing not in get_args(OnMissing):
        raise OptionError("on_missing", on_missing, "carry, null or error")
    interval_s = parameters["checkpoint_interval_seconds"]
    if interval_s is not None and not (_is_number(interval_s, (int, float)) and 0 <= interval_s < float("inf")):
        raise OptionError("checkpoint_interval_seconds", interval_s, "a number of seconds, 0 or more")
    for name, kind in (("_loader_cpus", (int, float)), ("_loader_memory", int)):
        value = parameters[name]
        if value is not None and not (_is_number(value, kind) and 0 < value < float("inf")):
            raise OptionError(name, value, "a number above 0")
    job = BackfillRequest(
        columns=columns,
        where=ALL_ROWS,
        concurrency=parameters["concurrency"],
        refresh_status_secs=parameters["refresh_status_secs"],
        batch_checkpoint_flush_interval_seconds=DEFAULT_INTERVAL_S if interval_s is None else float(interval_s),
        enable_job_tracker_saves=parameters["enable_job_tracker_saves"],
        admission_check=flag_of(None, ADMISSION_CHECK),
        admission_strict=flag_of(None, ADMISSION_STRICT),
        job_id=parameters["job_id"],
        commit_granularity=parameters["commit_granularity"],
        task_size=parameters["task_size"],
    )
    return LoadRequest(
        keys=keys,
        columns=columns,
        source_format=source_format,
        on_missing=on_missing,
        cpus=parameters["_loader_cpus"],
        memory=parameters["_loader_memory"],
        checkpoint_rows=_checkpoint_rows(parameters),
        job=job,
    )


def _checkpoint_rows(parameters: Mapping[str, Any]) -> tuple[int, int | None]:
    sizes = {name: parameters[name] for name in _SIZES if parameters[name] is not None}
    for name, rows in sizes.items():
        if not _is_number(rows, int) or rows < 1:
            raise OptionError(name, rows, "a whole number, 1 or more")
    least = sizes.pop("min_checkpoint_size", 1)
    most = min(sizes.values(), default=None)
    if most is not None and least > most:
        raise OptionError("min_checkpoint_size", least, f"at most {most}, the largest", problem="is too large")
    return least, most


def _is_number(value: object, kind: Any) -> bool:  # noqa: ANN401 - what isinstance takes
    return isinstance(value, kind) and not isinstance(value, bool)


def _names(option: str, names: str | Sequence[str]) -> tuple[str, ...]:
    try:
        return columns_of(names)
    except OptionError as error:
        raise OptionError(option, names, "the name of a column, or a list of different ones") from error
