"""The request of a caller of `compact_files`, validated once."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.errors import OptionError

_LEAST_1 = ("target_rows_per_fragment", "max_bytes_per_file", "batch_size", "concurrency", "commit_granularity")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """The validated parameters of :meth:`lance_spark.Table.compact_files`.

    None means the value of the table's configuration (keys `lance.compaction.*`), or pylance's
    default.
    """

    target_rows_per_fragment: int | None = None
    max_bytes_per_file: int | None = None
    materialize_deletions: bool | None = None
    materialize_deletions_threshold: float | None = None
    defer_index_remap: bool | None = None
    batch_size: int | None = None
    concurrency: int | None = None
    commit_granularity: int | None = None
    commit_max_retries: int | None = None

    def __post_init__(self) -> None:
        for name, least in [*((name, 1) for name in _LEAST_1), ("commit_max_retries", 0)]:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise OptionError(name, value, f"a whole number, {least} or more")
        for name in ("materialize_deletions", "defer_index_remap"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise OptionError(name, value, "True or False")
        share = self.materialize_deletions_threshold
        if share is not None and (isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1):
            accepted = "the share of deleted rows from which on a fragment is written anew, 0 or more and below 1"
            raise OptionError("materialize_deletions_threshold", share, accepted)

    @property
    def plan_options(self) -> dict[str, object]:
        """The requested options of pylance's plan."""
        names = (
            "target_rows_per_fragment",
            "max_bytes_per_file",
            "materialize_deletions",
            "materialize_deletions_threshold",
            "defer_index_remap",
            "batch_size",
        )
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}
