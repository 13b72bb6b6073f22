"""Rows of fragments that match a filter: :func:`matching_addresses`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lance_spark.errors import panics_as_errors
from lance_spark.read.filtering import as_filter_error
from lance_spark.rows.row_addresses import ROW_ADDRESS, Addresses

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment


def matching_addresses(
    dataset: lance.LanceDataset, fragments: Sequence[LanceFragment], text: str | None, mask: bytes | None = None
) -> Iterator[Addresses]:
    """Yields the addresses of the live rows that match a filter in Lance SQL, in order.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    try:
        with panics_as_errors():
            scanner = dataset.scanner(
                columns=[],
                filter=text,
                fragments=fragments,
                with_row_address=True,
                row_addr_allowlist=mask,
                scan_in_order=True,
            )
            for batch in scanner.to_reader():
                yield batch.column(ROW_ADDRESS).to_numpy()
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise as_filter_error(error, dataset, fragments[0].fragment_id, text) from error
