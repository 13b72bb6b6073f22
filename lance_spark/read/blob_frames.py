"""Blobs in pandas DataFrames, as file objects or as bytes: :class:`BlobColumns`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import pyarrow as pa

from lance_spark.errors import OptionError
from lance_spark.read.columns import ROW_ID
from lance_spark.read.ranking.ranking import search_errors
from lance_spark.types.fields import BlobHandling, is_blob, quote_identifier

if TYPE_CHECKING:
    import lance
    import pandas as pd

_T = TypeVar("_T")

BlobMode: TypeAlias = Literal["lazy", "bytes", "descriptions"]
"""Blobs in pandas: file objects, bytes, or the places of the bytes."""


def check_blob_mode(
    blob_mode: BlobMode | None, blob_handling: BlobHandling | None = None
) -> BlobMode:
    """Returns the mode of blobs in pandas, by default `lazy`.

    Args:
        blob_mode: The mode.
        blob_handling: The mode by the names of Arrow's methods.

    Raises:
        OptionError: A value is unknown, or both arguments have one.
    """
    if blob_handling is None:
        mode = blob_mode or "lazy"
    elif blob_mode is None and blob_handling in ("descriptor", "bytes"):
        mode = "bytes" if blob_handling == "bytes" else "descriptions"
    else:
        accepted = "descriptor or bytes" if blob_mode is None else "nothing beside blob_mode"
        raise OptionError("blob_handling", blob_handling, accepted)
    if mode not in ("lazy", "bytes", "descriptions"):
        raise OptionError("blob_mode", blob_mode, "lazy, bytes or descriptions")
    return mode


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobColumns:
    """The blob columns of a result.

    Attributes:
        dataset: The version of the table.
        sources: The table's column by the column of the result. Blobs in structs are left out.
        mode: `lazy` for file objects, or `bytes`.
    """

    dataset: lance.LanceDataset
    sources: dict[str, str]
    mode: BlobMode

    @staticmethod
    def of(
        dataset: lance.LanceDataset, columns: Iterable[tuple[str, str]] | None, mode: BlobMode
    ) -> BlobColumns | None:
        """Returns the blob columns of a result; None if the result needs no bytes.

        Args:
            dataset: The version of the table.
            columns: Names in the result with expressions in Lance SQL; None is all columns.
            mode: How pandas gets the blobs.
        """
        if mode == "descriptions":
            return None
        blobs = [field.name for field in dataset.schema if is_blob(field)]
        if columns is None:
            sources = {name: name for name in blobs}
        else:
            by_expression = {
                expression: name for name in blobs for expression in (name, quote_identifier(name))
            }
            sources = {name: by_expression[text] for name, text in columns if text in by_expression}
        return BlobColumns(dataset=dataset, sources=sources, mode=mode) if sources else None

    def to_pandas(
        self, rows: pa.Table, convert: Callable[[pa.Table], pd.DataFrame]
    ) -> pd.DataFrame:
        """Returns rows as a data frame with their blobs.

        Args:
            rows: The rows with their row ids.
            convert: Converts the rows without blobs.

        Raises:
            TableUnreadableError: A blob is missing.
        """
        import pandas as pd

        ids: list[int] = rows[ROW_ID].to_numpy().tolist()
        placeholders = rows
        for name in self.sources:
            placeholders = placeholders.set_column(
                rows.schema.get_field_index(name), name, pa.nulls(len(rows))
            )
        frame = convert(placeholders)
        for name, column in self.sources.items():
            blobs = (read_blobs if self.mode == "bytes" else open_blobs)(self.dataset, column, ids)
            frame[name] = pd.Series(blobs, frame.index, dtype=object)
        return frame


def read_blobs(
    dataset: lance.LanceDataset, column: str, row_ids: Sequence[int]
) -> list[bytes | None]:
    """Returns the bytes of the blobs of rows in the order of their ids.

    Raises:
        OptionError: The version has no row with an id.
        TableUnreadableError: A blob is missing.
    """

    def read() -> list[bytes | None]:
        return [
            blob for _, blob in dataset.read_blobs(column, ids=list(row_ids), preserve_order=True)
        ]

    return _with_known_rows(dataset, read) if row_ids else []


def open_blobs(
    dataset: lance.LanceDataset, column: str, row_ids: Sequence[int]
) -> list[lance.BlobFile | None]:
    """Returns the blobs of rows as files in the order of the ids.

    Raises:
        OptionError: The version has no row with an id.
        TableUnreadableError: A blob is missing.
    """
    return (
        _with_known_rows(dataset, lambda: dataset.take_blobs(column, ids=list(row_ids)))
        if row_ids
        else []
    )


def _with_known_rows(dataset: lance.LanceDataset, read: Callable[[], _T]) -> _T:
    with search_errors(dataset, None):
        try:
            return read()
        except ValueError as error:
            missing_id = re.search(r"first missing row ID (\d+)", str(error))
            if missing_id is None:
                raise
            raise OptionError(
                "row_ids", int(missing_id[1]), f"ids of rows of version {dataset.version}"
            ) from error
