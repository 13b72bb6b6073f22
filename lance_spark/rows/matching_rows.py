"""Matching rows of a filter, by fragment: :func:`matching_rows` and :func:`matching_addresses`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.errors import panics_as_errors
from lance_spark.read.filtering import as_filter_error, conjunction
from lance_spark.rows.row_addresses import ROW_ADDRESS, Addresses, fragments_of

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

_SCAN_ROWS = 8192
_SCAN_BYTES = 16 << 20


def matching_addresses(
    dataset: lance.LanceDataset,
    fragments: Sequence[LanceFragment],
    text: str | None,
    mask: bytes | None = None,
    *,
    use_index: bool = True,
) -> Iterator[Addresses]:
    """Yields the addresses of the live rows that match a filter in Lance SQL, in order.

    Scalar indexes may evaluate the filter, unless `use_index` is false.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    for batch in _scan(
        dataset, fragments, text, columns=[], row_addr_allowlist=mask, use_scalar_index=use_index
    ):
        yield batch.column(ROW_ADDRESS).to_numpy()


def matching_rows(
    dataset: lance.LanceDataset,
    fragments: Sequence[LanceFragment],
    text: str | None,
    columns: Mapping[str, str],
    mask: bytes | None = None,
    *,
    use_index: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yields expressions with row ids and addresses of the live rows that match a filter, in order.

    Scalar indexes may evaluate the filter, unless `use_index` is false.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    return _scan(
        dataset,
        fragments,
        text,
        columns=dict(columns) or [],
        row_addr_allowlist=mask,
        use_scalar_index=use_index,
        with_row_id=True,
        batch_size=_SCAN_ROWS,
        batch_size_bytes=_SCAN_BYTES,
    )


def _scan(
    dataset: lance.LanceDataset,
    fragments: Sequence[LanceFragment],
    text: str | None,
    **options: Any,  # noqa: ANN401 - options of a scanner
) -> Iterator[pa.RecordBatch]:
    fragment_id = fragments[0].fragment_id if fragments else -1
    try:
        with panics_as_errors():
            scanner = dataset.scanner(
                filter=conjunction(text),
                fragments=list(fragments),
                with_row_address=True,
                scan_in_order=True,
                **options,
            )
            for batch in scanner.to_reader():
                yield batch
                if batch.num_rows:
                    fragment_id = int(fragments_of(batch.column(ROW_ADDRESS)[-1:].to_numpy())[0])
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise as_filter_error(error, dataset, fragment_id, text) from error
