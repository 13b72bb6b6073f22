"""Decoding, compaction and deletion of rows in the tables next to the data. Runs in a child.

Lance verifies no checksums. A damaged or forged data file can end the decoding process. Neither the
driver nor a task therefore calls these functions: `jobs/reader_process.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.errors import panics_as_errors
from lance_spark.lance_compat import moment_of, plain, version_of

if TYPE_CHECKING:
    import lance

KEPT_VERSIONS = 64
"""Number of versions between two removals of old versions: each append makes a version."""

_READERS_TAKE = timedelta(minutes=10)
"""Minimum age of versions removed by compaction. A reader finishes within this time."""

_FRAGMENT_ROWS = 1 << 17
"""Rows of a fragment that compaction leaves alone: each row is rewritten a few times at most."""

_MOST_FRAGMENTS = 8
"""Maximum number of fragments that the removal of old versions leaves alone."""

UNREADABLE = (OSError, ValueError, TypeError, RuntimeError)
"""Errors of pylance for damaged files, and of pyarrow for columns of another type."""


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that cannot be decoded.

    Attributes:
        path: Path below the table's folder.
        reason: Why the file cannot be decoded.
    """

    path: str
    reason: str


def decode_rows(
    at: DatasetRef,
    schema: pa.Schema,
    filter: str | None,
    fragment_ids: list[int] | None = None,
    most: int | None = None,
) -> tuple[pa.Table, list[DamagedFile]]:
    """Returns the rows that match a filter, and the files that cannot be decoded.

    Args:
        at: The table.
        schema: Columns to return. A column missing from the table is NULL.
        filter: Lance SQL, or None for all rows.
        fragment_ids: Fragments to decode, or None for all fragments.
        most: Maximum number of rows, or None for all rows.

    Raises:
        TableNotFoundError: The table does not exist.
        TableUnreadableError: The manifest is damaged, or the store refused.
    """
    dataset = at.open_latest()
    if fragment_ids is None:
        try:
            return _select(dataset, schema, filter, most), []
        except UNREADABLE:
            pass
    parts, damaged = [schema.empty_table()], []
    for fragment in dataset.get_fragments():
        if fragment_ids is not None and fragment.fragment_id not in fragment_ids:
            continue
        try:
            parts.append(_select(fragment, schema, filter, most))
        except UNREADABLE as error:
            damaged += [DamagedFile(path, plain(error)) for path in paths_of(fragment)]
    return pa.concat_tables(parts)[:most], damaged


def delete_rows(at: DatasetRef, filter: str) -> None:
    """Deletes the rows that match a filter, and compacts the table.

    Raises:
        OSError: The store refused, or a file is damaged.
    """
    dataset = at.open_latest()
    with panics_as_errors():
        # If a concurrent commit came first, pylance applies the filter to the latest version.
        dataset.delete(filter)
    compact(at, most_fragments=0)


def compact(at: DatasetRef, most_fragments: int = _MOST_FRAGMENTS) -> None:
    """Removes old versions, and merges fragments if the table has too many.

    Each append adds a version. Appends of concurrent writers also add fragments.

    Raises:
        OSError: The store refused, a file is damaged, or a concurrent writer compacts too.
    """
    dataset = at.open_latest()
    with panics_as_errors():
        if len(dataset.get_fragments()) > most_fragments:
            dataset.optimize.compact_files(target_rows_per_fragment=_FRAGMENT_ROWS)
        if _has_old_versions(dataset):
            dataset.cleanup_old_versions(older_than=_READERS_TAKE)


def _has_old_versions(dataset: lance.LanceDataset) -> bool:
    """Tells whether a removal of old versions removes at least half of many versions.

    A removal reads the manifest of each version, of young versions, too.
    """
    versions = sorted(ref["version"] for ref in dataset.version_refs())
    if len(versions) <= KEPT_VERSIONS:
        return False
    middle = dataset.checkout_version(versions[len(versions) // 2])
    return moment_of(version_of(middle)) < datetime.now(UTC) - _READERS_TAKE


def paths_of(fragment: lance.LanceFragment) -> Iterator[str]:
    """Yields the paths of a fragment's data files and deletion file, below the table's folder."""
    yield from (f"data/{file.path}" for file in fragment.data_files())
    deletions = fragment.deletion_file()
    if deletions:
        yield deletions


def _select(
    source: lance.LanceDataset | lance.LanceFragment,
    schema: pa.Schema,
    filter: str | None,
    most: int | None,
) -> pa.Table:
    with panics_as_errors():
        # Late materialization would read each small file twice: the filter's column first.
        rows = source.to_table(filter=filter, limit=most, late_materialization=False)
    arrays = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    table = pa.Table.from_arrays(arrays, schema=schema)
    table.validate(full=True)
    return table
