"""Matching rows of a filter, by fragment: :func:`matching_rows` and :func:`matching_addresses`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.errors import LanceSparkError, panics_as_errors
from lance_spark.read.filtering import as_filter_error, conjunction
from lance_spark.rows.row_addresses import ROW_ADDRESS, Addresses, fragments_of, offsets_of, runs_of
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

_SCAN_ROWS = 8192
_SCAN_BYTES = 16 << 20

_OFFSET_BYTES = 8
_MOST_TOGETHER = 64
_MOST_BYTES_TOGETHER = 4 << 20
"""Maximum number of fragments in a common scan, and of the bytes of their files or offsets."""


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


class FragmentMatches:
    """The matching rows of one fragment after another. Belongs to one thread.

    Small fragments are scanned together. A scan of a single fragment of ten rows takes three times
    as long as its part of a common scan.
    """

    def __init__(self, following: Sequence[int] = ()) -> None:
        """Takes the ids of the next fragments, in order."""
        self._following = following
        self._places = {number: place for place, number in enumerate(following)}
        self._matches: dict[str, Mapping[int, RowSet]] = {}

    def of(self, dataset: lance.LanceDataset, fragment: LanceFragment, text: str) -> RowSet:
        """Returns a fragment's live rows that match a filter in Lance SQL.

        Keeps the rows of the last scan for each filter.

        Raises:
            FilterError: The filter fails on a value of the fragment.
            TableUnreadableError: A file of the fragment is missing or damaged.
        """
        if fragment.fragment_id not in self._matches.get(text, ()):
            group = self._small_group(dataset, fragment)
            try:
                self._matches[text] = _scan_rows(dataset, group, text)
            except LanceSparkError:  # of any fragment of the group
                if len(group) == 1:
                    raise
                self._places = {}
                self._matches[text] = _scan_rows(dataset, [fragment], text)
        return self._matches[text][fragment.fragment_id]

    def _small_group(
        self, dataset: lance.LanceDataset, first: LanceFragment
    ) -> list[LanceFragment]:
        """Returns a fragment, and the next fragments if all are small."""
        group, group_bytes = [first], _size_of(first)
        place = self._places.get(first.fragment_id, len(self._following))
        for number in self._following[place + 1 : place + _MOST_TOGETHER]:
            fragment = dataset.get_fragment(number)
            group_bytes += _MOST_BYTES_TOGETHER if fragment is None else _size_of(fragment)
            if fragment is None or group_bytes > _MOST_BYTES_TOGETHER:
                break
            group.append(fragment)
        return group


def _size_of(fragment: LanceFragment) -> int:
    """Returns the bytes of a fragment's files, at least those of the offsets of its rows.

    A file of unknown size is large.
    """
    metadata = fragment.metadata
    stored = sum(file.file_size_bytes or _MOST_BYTES_TOGETHER for file in metadata.files)
    return max(stored, metadata.physical_rows * _OFFSET_BYTES)


def _scan_rows(
    dataset: lance.LanceDataset, fragments: Sequence[LanceFragment], text: str
) -> dict[int, RowSet]:
    """Returns the matching rows of each fragment."""
    parts: dict[int, list[NDArray[np.int64]]] = {
        fragment.fragment_id: [np.empty(0, dtype=np.int64)] for fragment in fragments
    }
    for addresses in matching_addresses(dataset, fragments, text):
        for number, start, end in runs_of(fragments_of(addresses)):
            parts[number].append(offsets_of(addresses[start:end]))
    return {number: RowSet.of(np.concatenate(offsets)) for number, offsets in parts.items()}


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
