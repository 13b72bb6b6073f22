"""The parameters of a refresh: :class:`RefreshRequest`."""

from __future__ import annotations

from dataclasses import dataclass, field

from lance_spark.backfill.request import (
    ADMISSION_CHECK,
    ADMISSION_STRICT,
    DEFAULT_CONCURRENCY,
    blob_buffer_of,
    flag_of,
)
from lance_spark.errors import OptionError, UnsupportedOperationError

DEFAULT_FRAGMENT_ROWS = 1_048_576


@dataclass(frozen=True, kw_only=True)
class RefreshRequest:
    """The checked parameters of :meth:`lance_spark.Table.refresh`.

    Attributes:
        blob_read_buffer_size: Maximum bytes of blobs in a task.

    Raises:
        OptionError: A parameter is not valid.
        UnsupportedOperationError: The request has a `where`.
    """

    where: str | None = None
    src_version: int | None = None
    max_rows_per_fragment: int | None = None
    concurrency: int | None = DEFAULT_CONCURRENCY
    intra_applier_concurrency: int = 1
    _admission_check: bool | None = None
    _admission_strict: bool | None = None
    blob_read_buffer_size: int = field(init=False)

    def __post_init__(self) -> None:
        if self.where is not None:
            raise UnsupportedOperationError(
                "A refresh takes no where, because the view's query selects its rows. Make a view with where(...), or "
                "backfill a column of the view with where=."
            )
        for name in (
            "src_version",
            "max_rows_per_fragment",
            "concurrency",
            "intra_applier_concurrency",
        ):
            value = getattr(self, name)
            optional = value is None and name != "intra_applier_concurrency"
            if not optional and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise OptionError(name, value, "a whole number, 1 or more")
        object.__setattr__(self, "blob_read_buffer_size", blob_buffer_of(None))

    @property
    def fragment_rows(self) -> int:
        """Most rows of a fragment of the view."""
        return self.max_rows_per_fragment or DEFAULT_FRAGMENT_ROWS

    @property
    def admission_check(self) -> bool:
        """Whether to compare the resources of the UDFs with the resources of the cluster."""
        return flag_of(self._admission_check, ADMISSION_CHECK)

    @property
    def admission_strict(self) -> bool:
        """Whether too few resources are an error."""
        return flag_of(self._admission_strict, ADMISSION_STRICT)
