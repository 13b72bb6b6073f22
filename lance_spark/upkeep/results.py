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
