"""The request of a caller of `load_columns`, validated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, get_args

from lance_spark.backfill.request import (
    DEFAULT_CONCURRENCY,
    DEFAULT_REFRESH_S,
    BackfillRequest,
    columns_of,
)
from lance_spark.errors import OptionError
from lance_spark.ingest.rows import Data

SourceFormat = Literal["parquet", "lance", "ipc"]
OnMissing = Literal["carry", "null", "error"]

DEFAULT_INTERVAL_S = 60.0
"""Seconds between checkpoints of joined values: more than for a UDF, because a join is quick."""

ALL_ROWS = "1=1"
"""The filter of a load. It selects all rows, with or without a value."""


@dataclass(frozen=True)
class SourceParameters:
    """The parameters of :meth:`lance_spark.Table.plan_load_columns`, checked.

    Raises:
        OptionError: A parameter is not valid.
    """

    source: str | list[str] | Data
    pk: str | list[str]
    columns: list[str]
    _: KW_ONLY
    source_format: Literal["parquet", "lance", "ipc"] | None = None
    on_missing: Literal["carry", "null", "error"] = "carry"
    source_storage_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        both = sorted(
            set(_parse_columns("pk", self.pk)) & set(_parse_columns("columns", self.columns))
        )
        if both:
            raise OptionError("columns", ", ".join(both), "columns other than the key's")
        if self.source_format is not None and self.source_format not in get_args(SourceFormat):
            accepted = "parquet, lance or ipc; None looks at the names"
            raise OptionError("source_format", self.source_format, accepted)
        if self.on_missing not in get_args(OnMissing):
            raise OptionError("on_missing", self.on_missing, "carry, null or error")


@dataclass(frozen=True, kw_only=True)
class LoadParameters(SourceParameters):
    """The parameters of :meth:`lance_spark.Table.load_columns`, which documents them, checked.

    Raises:
        OptionError: A parameter is not valid.
    """

    concurrency: int | None = DEFAULT_CONCURRENCY
    task_size: int | None = None
    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    checkpoint_interval_seconds: float | None = None
    _loader_cpus: float | None = None
    _loader_memory: int | None = None
    commit_granularity: int | None = None
    refresh_status_secs: float = DEFAULT_REFRESH_S
    enable_job_tracker_saves: bool = True
    job_id: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        interval_s = self.checkpoint_interval_seconds
        if interval_s is not None and not (
            _is_number(interval_s, (int, float)) and 0 <= interval_s < float("inf")
        ):
            raise OptionError(
                "checkpoint_interval_seconds", interval_s, "a number of seconds, 0 or more"
            )
        for name, kind in (("_loader_cpus", (int, float)), ("_loader_memory", int)):
            value = getattr(self, name)
            if value is not None and not (_is_number(value, kind) and 0 < value < float("inf")):
                raise OptionError(name, value, "a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A load, from its parameters.

    Attributes:
        keys: The columns of the key.
        columns: The columns to load, with equal names in source and table.
        source_format: Format of files, or None for the format of their names.
        on_missing: Handling of rows without a match.
        num_cpus: Processor cores of a loading task, or None.
        memory: Bytes of a loading task, or None.
        checkpoint_rows: Minimum and maximum rows of a checkpoint. No maximum: only bytes and time
            limit a checkpoint.
        job: The parameters of the job.
    """

    name: ClassVar[str] = "load_columns"
    num_gpus: ClassVar[float | None] = None

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    source_format: SourceFormat | None
    on_missing: OnMissing
    num_cpus: float | None
    memory: int | None
    checkpoint_rows: tuple[int, int | None]
    job: BackfillRequest

    @staticmethod
    def of(parameters: LoadParameters) -> LoadRequest:
        """Returns the request of a call.

        Raises:
            OptionError: A parameter is not valid.
        """
        interval_s = parameters.checkpoint_interval_seconds
        columns = columns_of(parameters.columns)
        job = BackfillRequest(
            columns=columns,
            where=ALL_ROWS,
            concurrency=parameters.concurrency,
            refresh_status_secs=parameters.refresh_status_secs,
            batch_checkpoint_flush_interval_seconds=DEFAULT_INTERVAL_S
            if interval_s is None
            else float(interval_s),
            _enable_job_tracker_saves=parameters.enable_job_tracker_saves,
            job_id=parameters.job_id,
            commit_granularity=parameters.commit_granularity,
            task_size=parameters.task_size,
        )
        return LoadRequest(
            keys=columns_of(parameters.pk),
            columns=columns,
            source_format=parameters.source_format,
            on_missing=parameters.on_missing,
            num_cpus=parameters._loader_cpus,  # noqa: SLF001 - the name of a public parameter
            memory=parameters._loader_memory,  # noqa: SLF001
            checkpoint_rows=_checkpoint_rows(parameters),
            job=job,
        )


def _checkpoint_rows(parameters: LoadParameters) -> tuple[int, int | None]:
    options = {
        "checkpoint_size": parameters.checkpoint_size,
        "min_checkpoint_size": parameters.min_checkpoint_size,
        "max_checkpoint_size": parameters.max_checkpoint_size,
    }
    sizes = {name: rows for name, rows in options.items() if rows is not None}
    for name, rows in sizes.items():
        if not _is_number(rows, int) or rows < 1:
            raise OptionError(name, rows, "a whole number, 1 or more")
    least = sizes.pop("min_checkpoint_size", 1)
    most = min(sizes.values(), default=None)
    if most is not None and least > most:
        raise OptionError(
            "min_checkpoint_size", least, f"at most {most}, the largest", problem="is too large"
        )
    return least, most


def _is_number(value: object, kind: Any) -> bool:  # noqa: ANN401 - a type or a tuple of types
    return isinstance(value, kind) and not isinstance(value, bool)


def _parse_columns(option: str, names: str | Sequence[str]) -> tuple[str, ...]:
    try:
        return columns_of(names)
    except OptionError as error:
        raise OptionError(
            option, names, "the name of a column, or a list of different ones"
        ) from error
