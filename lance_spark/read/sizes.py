"""How big each fragment is for one scan: live rows, and stored bytes of the columns that are read.

The manifest tells the size of each data file, but not how it divides into columns. One file of each
kind (each set of columns) is looked at for that, of at most MAX_SAMPLES kinds: its footer, 3 ms on
a local disk. Where that fails, a fixed-width column takes its width, and what is then left is
divided evenly among the columns of variable width. Measured for 100,000 fragments: 2 s and 180 MiB,
nearly all of it pylance's objects, which are dropped as they are read.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import panics_as_errors
from lance_spark.types.fields import BLOB_V2, Array, Kind, extension_name, is_blob, storage_type
from lance_spark.types.names import requested_columns

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile

_LOG = logging.getLogger(__name__)

_Field: TypeAlias = Any
"""A `lance.schema.LanceField`, whose stub lacks `to_arrow`."""

_UNKNOWN_WIDTH = 32.0
"""Bytes of a value of variable width where no file size is known."""

_DECLARED_WIDTH = 20.0
"""Bytes of a value of variable width, as Spark estimates them."""

_ROW_WIDTH = 8.0
"""Bytes of a row without any column, as Spark estimates them."""

_LEAST_WIDTH = 1.0

_DESCRIPTOR_WIDTH = 32.0
"""Bytes of a blob's descriptor, all that is read of a blob that is not read as bytes."""

_SAMPLED_FRAGMENTS = 1000

MAX_SAMPLES = 8
"""Data files whose footers are read for the sizes of their columns."""

_BLOB_SAMPLE = 256
"""Blobs whose descriptors are looked at for their average size."""


@dataclass(frozen=True, slots=True)
class FragmentSize:
    """One fragment, as one scan sees it.

    Attributes:
        fragment_id: Its id.
        physical_rows: Row positions, deleted ones included.
        live_rows: Rows that are not deleted.
        stored_bytes: Estimated bytes on storage of the columns read, live or not.
    """

    fragment_id: int
    physical_rows: int
    live_rows: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSize:
    """All fragments of a scan, in the order of the table, and the width of its rows.

    Attributes:
        fragments: Every fragment with at least one live row.
        row_bytes: Estimated bytes of one row in memory, over all columns read.
        column_bytes: The same for each top-level column.
        even_bytes: What the columns read would take on storage, if the bytes of all columns were
            spread over them by the widths of their types, and at most what they take in Spark's
            rows. Spark estimates files so, and compares it with what may be broadcast: what is
            encoded far below its width is not small.
    """

    fragments: tuple[FragmentSize, ...]
    row_bytes: float
    column_bytes: dict[str, float]
    even_bytes: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column without children.

    Attributes:
        width: Bytes of a row's values; None where they vary, as all do below lists and maps.
        declared: Bytes of a value by its type alone, as Spark estimates them.
    """

    column: str
    width: float | None
    declared: float
    read: bool
    blob: bool
    descriptor: bool

    def memory(self, stored: float) -> float:
        """Returns bytes of a value in memory, given those on storage."""
        return _DESCRIPTOR_WIDTH if self.descriptor else stored if self.width is None else self.width


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a row takes in data files of one list of field ids: in all, and what is read of it."""

    row_bytes: float
    read_bytes: float


def measure(
    dataset: lance.LanceDataset,
    paths: Sequence[str],
    only: Sequence[int] | None,
    *,
    blob_bytes: bool = False,
    storage: tuple[tuple[str, str], ...] = (),
) -> ScanSize:
    """Measures the fragments of a dataset for a scan of the given columns.

    Runs on the driver; reads a few footers.

    Args:
        dataset: The table at its pinned version.
        paths: Top-level columns, or quoted paths of nested fields as
            :class:`~lance_spark.read.columns.Projection` gives them.
        only: Ids of the fragments that are read, or None for all.
        blob_bytes: Whether blobs are read as bytes. Those of file format 2.2 may lie in files of
            their own, whose sizes no manifest tells: the first descriptors are read for the
            average.
        storage: Options of the object store.
    """
    leaves = _leaves(dataset, paths, blob_bytes)
    apart = _blobs_apart(dataset, paths) if blob_bytes else {}
    apart_width = sum(apart.values())
    shapes: dict[tuple[int, ...], _Shape] = {}
    widths: dict[int, float] = {}
    chosen = None if only is None else frozenset(only)
    fragments: list[FragmentSize] = []
    file_bytes = 0
    for handle in dataset.get_fragments():
        if chosen is not None and handle.fragment_id not in chosen:
            continue
        metadata = handle.metadata
        rows = metadata.physical_rows
        live = rows - (metadata.deletion_file.num_deleted_rows if metadata.deletion_file is not None else 0)
        if live <= 0:
            continue
        stored = 0.0
        for file in metadata.files:
            key = tuple(file.fields)
            shape = shapes.get(key)
            if shape is None:
                sample = _column_bytes(dataset.uri, file, storage) if len(shapes) < MAX_SAMPLES else {}
                found = _file_widths(key, leaves, sample, (file.file_size_bytes or 0) / rows, rows)
                shape = shapes[key] = _shape(found, leaves)
                widths = {**found, **widths}
            size = file.file_size_bytes
            file_bytes += size or 0
            scale = size / shape.row_bytes if size and shape.row_bytes else rows
            stored += shape.read_bytes * scale
        fragments.append(FragmentSize(handle.fragment_id, rows, live, int(stored + rows * apart_width)))
    columns = dict(apart)
    for number, leaf in leaves.items():
        if leaf.read:
            columns[leaf.column] = columns.get(leaf.column, 0.0) + leaf.memory(widths.get(number, _UNKNOWN_WIDTH))
    read = _ROW_WIDTH + sum(leaf.declared for leaf in leaves.values() if leaf.read)
    whole = _ROW_WIDTH + sum(leaf.declared for leaf in leaves.values())
    return ScanSize(
        fragments=tuple(fragments),
        row_bytes=sum(columns.values()),
        column_bytes=columns,
        even_bytes=int(min(file_bytes / whole, sum(f.live_rows for f in fragments)) * read),
    )


def measure_row(dataset: lance.LanceDataset, columns: Sequence[str], storage: tuple[tuple[str, str], ...]) -> float:
    """Returns about how many bytes of memory a row of some columns takes, blobs as descriptors.

    Runs on the driver; looks at no more than 1,000 fragments, spread evenly.
    """
    numbers = sorted(dataset.fragment_ids())
    some = numbers[:: math.ceil(len(numbers) / _SAMPLED_FRAGMENTS) or 1]
    return measure(dataset, columns, some, storage=storage).row_bytes


def _blobs_apart(dataset: lance.LanceDataset, paths: Sequence[str]) -> dict[str, float]:
    """Returns the average blob size of each column whose blobs may lie outside of data files."""
    found = {}
    for field in dataset.schema:
        if field.name in paths and is_blob(field) and extension_name(field) == BLOB_V2:
            try:
                with panics_as_errors():
                    sizes = _first_blob_sizes(dataset, field.name)
            except (ValueError, OSError, RuntimeError) as error:  # a damaged file: the scan will say which
                _LOG.warning("sizes of the blobs in column %s are not known: %s", field.name, error)
                continue
            found[field.name] = float(pc.mean(sizes).as_py() or 0)
    return found


def _first_blob_sizes(dataset: lance.LanceDataset, column: str) -> Array:
    scanner = dataset.scanner(
        columns=requested_columns([column]), blob_handling="blobs_descriptions", limit=_BLOB_SAMPLE
    )
    descriptors: Array = scanner.to_table().column(0).combine_chunks()
    return descriptors.field("size")


@functools.lru_cache(maxsize=256)
def _statistics(uri: str, path: str, storage: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
    from lance_spark.objects import open_session  # a worker that reads needs no sizes

    reader = open_session(uri, storage).open_reader(path)
    return tuple(column.size_bytes for column in reader.file_statistics().columns)


def _column_bytes(uri: str, file: DataFile, storage: tuple[tuple[str, str], ...]) -> dict[int, int]:
    """Returns the stored bytes of each field of a data file; none where it cannot be opened."""
    try:
        with panics_as_errors():
            sizes = _statistics(uri, f"data/{file.path}", storage)
    except (
        ValueError,
        OSError,
        RuntimeError,
    ) as error:  # files of the legacy format, of another base path, damaged ones
        _LOG.debug("sizes of the columns in %s are estimated: %s", file.path, error)
        return {}
    columns = zip(file.fields, file.column_indices, strict=False)
    return {number: sizes[index] for number, index in columns if 0 <= index < len(sizes)}


def _file_widths(
    fields: Sequence[int], leaves: dict[int, _Leaf], sample: dict[int, int], row_bytes: float, rows: int
) -> dict[int, float]:
    """Returns the stored bytes per row of each field of a data file, known or estimated."""
    if sample:
        widths = {number: size / rows for number, size in sample.items()}
        # Bytes of blobs lie in the file outside of its columns.
        outside = max(0.0, row_bytes - sum(widths.values()))
        blobs = [number for number in widths if number in leaves and leaves[number].blob]
        return {number: width + (outside / len(blobs) if number in blobs else 0) for number, width in widths.items()}
    declared = {number: leaves[number].width if number in leaves else 0.0 for number in fields if number >= 0}
    fixed = sum(width for width in declared.values() if width is not None)
    # Columns that a newer file replaced (-2) are still in this one, of an unknown type.
    variable = sum(1 for width in declared.values() if width is None) + sum(1 for number in fields if number < 0)
    share = max(_LEAST_WIDTH, (row_bytes - fixed) / max(1, variable)) if row_bytes else _UNKNOWN_WIDTH
    return {number: share if width is None else width for number, width in declared.items()}


def _shape(widths: dict[int, float], leaves: dict[int, _Leaf]) -> _Shape:
    read = {number: width for number, width in widths.items() if number in leaves and leaves[number].read}
    return _Shape(
        row_bytes=sum(widths.values()),
        read_bytes=sum(_DESCRIPTOR_WIDTH if leaves[n].descriptor else width for n, width in read.items()),
    )


def _leaves(dataset: lance.LanceDataset, paths: Sequence[str], blob_bytes: bool) -> dict[int, _Leaf]:
    wanted = {
        tuple(p[1:-1].split("`.`")) if p.startswith("`") and p.endswith("`") and "`.`" in p else (p,) for p in paths
    }
    leaves: dict[int, _Leaf] = {}
    for field in dataset.lance_schema.fields():
        for path, leaf, repeated in _walk(field, ()):
            read = any(path[: len(w)] == w for w in wanted)
            arrow = leaf.to_arrow()
            blob = is_blob(arrow)
            width = _width(arrow.type)
            leaves[leaf.id()] = _Leaf(
                path[0],
                None if repeated else width,
                _DECLARED_WIDTH if width is None else width,
                read,
                blob,
                blob and not blob_bytes,
            )
    return leaves


def _walk(
    field: _Field, above: tuple[str, ...], repeated: bool = False
) -> Iterator[tuple[tuple[str, ...], _Field, bool]]:
    """Yields leaves below a field: path, field, and whether a row may have several values."""
    path = (*above, field.name())
    children = field.children()
    arrow = field.to_arrow()
    if not children or is_blob(arrow):
        yield path, field, repeated
        return
    for child in children:
        yield from _walk(child, path, repeated or not pa.types.is_struct(storage_type(arrow)))


def _width(arrow: Kind) -> float | None:
    """Returns bytes of one value, or None where they vary from value to value."""
    if pa.types.is_boolean(arrow):
        return 1 / 8
    if pa.types.is_fixed_size_list(arrow):
        inner = _width(arrow.value_type)
        return None if inner is None else inner * arrow.list_size
    if isinstance(arrow, pa.BaseExtensionType):
        return _width(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return _width(arrow.index_type)
    try:
        return float(arrow.bit_width) / 8
    except ValueError:
        return None
