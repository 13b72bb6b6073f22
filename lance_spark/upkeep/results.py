"""Results of upkeep, with summaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.display import Displayable
from lance_spark.errors import counted
from lance_spark.indexes.listing import list_indices

if TYPE_CHECKING:
    import lance

_SMALL_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompactionResult(Displayable):
    """The result of a compaction.

    Attributes:
        job_id: Id of the job in the history of the table.
        read_version: The first planned version.
        versions: The committed versions.
        fragments_removed: Number of replaced fragments.
        fragments_added: Number of new fragments.
        files_removed: Number of data files that the latest version dropped. A cleanup of the older
            versions deletes the files.
        files_added: Number of new, committed data files.
        rows: Live rows of the replaced fragments, and of the new fragments.
        deletions_removed: Deleted rows that the new fragments do not contain.
        retries: Number of tasks repeated after a concurrent commit changed their fragments.
        fragments_left: Number of planned fragments that stayed, because other writers kept changing
            them.
        seconds: Time of `plan`, `write` (the Spark jobs, concurrent commits included) and `commit`,
            and in `total`.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add([{"id": 10, "price": 100}])
        result = books.compact_files()
        print(result.fragments_removed, result.fragments_added)
        ```
    """

    job_id: str
    read_version: int
    versions: tuple[int, ...] = ()
    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0
    rows: int = 0
    deletions_removed: int = 0
    retries: int = 0
    fragments_left: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Summary of the result."""
        if not self.versions and not self.fragments_left:
            return "nothing to compact"
        parts = []
        if self.versions:
            parts.append(
                f"{counted(self.fragments_removed, 'fragment')} became {self.fragments_added:,}, with "
                f"{counted(self.rows, 'row')}"
            )
        if self.deletions_removed:
            parts.append(f"{counted(self.deletions_removed, 'deleted row')} removed")
        if self.fragments_left:
            parts.append(
                f"{counted(self.fragments_left, 'fragment')} left, which others kept changing"
            )
        return (
            ", ".join(parts)
            + f" ({counted(len(self.versions), 'commit')}, {self.seconds.get('total', 0):,.1f} s)"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CleanupResult(Displayable):
    """The result of a cleanup.

    Attributes:
        bytes_removed: Bytes of the deleted files.
        old_versions: Number of removed versions.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        from datetime import timedelta

        books.update(values={"price": 0})
        result = books.cleanup_old_versions(older_than=timedelta(days=7))
        print(result.old_versions, result.bytes_removed)  # 0 0
        ```
    """

    bytes_removed: int
    old_versions: int

    @property
    def text(self) -> str:
        """Summary of the result."""
        return f"{counted(self.old_versions, 'version')} removed, {_size(self.bytes_removed)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableStatistics(Displayable):
    """The size of a table's latest version, from its metadata.

    LanceDB's names are keys: `stats["num_rows"]`, `"num_indices"`, `"total_bytes"` of data files
    and indexes, and `"fragment_stats"`.

    Attributes:
        version: The version.
        rows: Number of live rows.
        deleted_rows: Number of deleted rows in data files.
        fragments: Number of fragments.
        small_fragments: Number of fragments with fewer rows than the target of a compaction:
            1,048,576.
        data_files: Number of data files of the version.
        size_bytes: Known bytes of the data files.
        versions: Number of versions.
        unindexed_rows: Number of rows outside each index, by its name.
        index_bytes: Known bytes of the indexes.
        fragment_rows: Live rows of the fragments: `min`, `max`, `mean`, `p25`, `p50`, `p75` and
            `p99`; 0 without fragments.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        stats = books.stats()
        print(stats.rows, stats.fragments, stats.size_bytes)
        ```
    """

    version: int
    rows: int
    deleted_rows: int
    fragments: int
    small_fragments: int
    data_files: int
    size_bytes: int
    versions: int
    unindexed_rows: Mapping[str, int] = field(default_factory=dict)
    index_bytes: int = 0
    fragment_rows: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> object:
        """Returns a number by LanceDB's name: `stats["num_rows"]`.

        Raises:
            KeyError: No number has this name.
        """
        fragments = {
            "num_fragments": self.fragments,
            "num_small_fragments": self.small_fragments,
            "lengths": dict(self.fragment_rows),
        }
        return {
            "total_bytes": self.size_bytes + self.index_bytes,
            "num_rows": self.rows,
            "num_indices": len(self.unindexed_rows),
            "fragment_stats": fragments,
        }[name]

    @staticmethod
    def of(dataset: lance.LanceDataset) -> TableStatistics:
        """Returns the size of a version. Reads only the manifest."""
        fragments = [handle.metadata for handle in dataset.get_fragments()]
        indexes = list_indices(dataset)
        return TableStatistics(
            version=dataset.version,
            rows=sum(fragment.num_rows for fragment in fragments),
            deleted_rows=sum(fragment.num_deletions for fragment in fragments),
            fragments=len(fragments),
            small_fragments=sum(fragment.num_rows < _SMALL_ROWS for fragment in fragments),
            data_files=sum(len(fragment.files) for fragment in fragments),
            size_bytes=sum(
                file.file_size_bytes or 0 for fragment in fragments for file in fragment.files
            ),
            versions=len(dataset.version_refs()),
            unindexed_rows={index.name: index.num_unindexed_rows for index in indexes},
            index_bytes=sum(index.size_bytes or 0 for index in indexes),
            fragment_rows=_describe_lengths([fragment.num_rows for fragment in fragments]),
        )

    @property
    def text(self) -> str:
        """Summary of the size."""
        deleted_text = f" ({self.deleted_rows:,} deleted)" if self.deleted_rows else ""
        files = f"{counted(self.data_files, 'data file')} of {_size(self.size_bytes)}"
        fragments = counted(self.fragments, "fragment")
        return f"version {self.version}: {counted(self.rows, 'row')}{deleted_text} in {fragments}, {files}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MaintenanceResult(Displayable):
    """The result of a maintenance.

    Attributes:
        compaction: The compaction.
        indexes: Names of the optimized indexes.
        cleanup: The cleanup.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        result = books.maintain()
        print(result.compaction.fragments_removed, result.cleanup.old_versions)
        ```
    """

    compaction: CompactionResult
    indexes: tuple[str, ...]
    cleanup: CleanupResult

    @property
    def text(self) -> str:
        """Summary of the result."""
        indexes = (
            f"indexes {', '.join(self.indexes)} optimised"
            if self.indexes
            else "no index to optimise"
        )
        return f"{self.compaction.text}; {indexes}; {self.cleanup.text}"


def _describe_lengths(lengths: list[int]) -> dict[str, int]:
    """Returns the least, largest and mean length, and percentiles, as LanceDB has them."""
    ordered = sorted(lengths) or [0]
    percentiles = {f"p{share}": ordered[len(ordered) * share // 100] for share in (25, 50, 75, 99)}
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": sum(ordered) // len(ordered),
        **percentiles,
    }


def _size(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size = size / 1024  # type: ignore[assignment]
    return f"{size:,.1f} TiB"
