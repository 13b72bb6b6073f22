"""What upkeep did, as values that say so in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lance_spark.errors import counted
from lance_spark.words import InWords


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompactionResult(InWords):
    """What a compaction did.

    Attributes:
        job_id: Id of the job in the history of the table.
        read_version: The version that was planned on first.
        versions: Versions that were committed.
        fragments_removed: Fragments that others have taken the place of.
        fragments_added: These others.
        files_removed: Data files that the latest version does not name any more; they stay until
            the versions that name them are cleaned up.
        files_added: Data files that were written for it, and committed.
        rows: Live rows of the fragments that were removed; rows are as many afterwards.
        deletions_removed: Rows that had been deleted, and are in no file of the new fragments.
        retries: Tasks whose work was lost and done again, because a concurrent commit had changed
            their fragments first.
        fragments_left: Fragments that were to be compacted and were not, because others kept
            changing them.
        seconds: Time of `plan`, `write` (of the Spark jobs, also while commits were made) and
            `commit`, and in `total`.
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
        """What it did, in words."""
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
            parts.append(f"{counted(self.fragments_left, 'fragment')} left, which others kept changing")
        return ", ".join(parts) + f" ({counted(len(self.versions), 'commit')}, {self.seconds.get('total', 0):,.1f} s)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CleanupResult(InWords):
    """What a cleanup removed.

    Attributes:
        bytes_removed: Bytes of the files that were deleted.
        old_versions: Versions that were removed.
    """

    bytes_removed: int
    old_versions: int

    @property
    def text(self) -> str:
        """What it did, in words."""
        return f"{counted(self.old_versions, 'version')} removed, {_size(self.bytes_removed)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableStatistics(InWords):
    """The size of a table's latest version, from its metadata.

    Attributes:
        version: The version.
        rows: Live rows.
        deleted_rows: Rows that are deleted, and still in data files.
        fragments: Fragments.
        small_fragments: Fragments with fewer rows than a compaction aims at: 1,048,576.
        data_files: Data files of the version.
        size_bytes: Their bytes, as far as metadata has them.
        versions: Versions that are kept.
        unindexed_rows: Rows that are scanned beside each index, by its name.
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

    @property
    def text(self) -> str:
        """The size, in words."""
        gone = f" ({self.deleted_rows:,} deleted)" if self.deleted_rows else ""
        files = f"{counted(self.data_files, 'data file')} of {_size(self.size_bytes)}"
        fragments = counted(self.fragments, "fragment")
        return f"version {self.version}: {counted(self.rows, 'row')}{gone} in {fragments}, {files}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MaintenanceResult(InWords):
    """What a maintenance did.

    Attributes:
        compaction: What was compacted.
        indexes: Names of the indexes that took rows in.
        cleanup: What was removed.
    """

    compaction: CompactionResult
    indexes: tuple[str, ...]
    cleanup: CleanupResult

    @property
    def text(self) -> str:
        """What it did, in words."""
        indexes = f"indexes {', '.join(self.indexes)} optimised" if self.indexes else "no index to optimise"
        return f"{self.compaction.text}; {indexes}; {self.cleanup.text}"


def _size(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size = size / 1024  # type: ignore[assignment]
    return f"{size:,.1f} TiB"
