"""Notes that the ranges of one fragment leave for each other."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lance_spark.backfill.reuse.value_finder import FOLDER
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork
from lance_spark.checkpoints import LanceObjects
from lance_spark.rows.row_set import RowSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What became of the rows of one range, or of all of them.

    Attributes:
        computed: Rows that were computed or found.
        failed: Rows that are to be NULL: they failed, or somebody changed their inputs.
        nulled: How many those are whose inputs were changed.
    """

    computed: RowSet
    failed: RowSet
    nulled: int


class Notes:
    """What the ranges of one fragment leave for whoever ends the last of them; they go with the job."""

    def __init__(self, spec: BackfillSpec, work: FragmentWork) -> None:
        self._objects = LanceObjects(f"{spec.snapshot.uri}/{FOLDER}", spec.snapshot.storage_options)
        # A round that reads the same version as the one before must not take its notes.
        self._folder = f"jobs/{spec.staging.job_id}/ranges/{spec.round}-{work.fragment_id}"
        self._work = work

    def leave(self, noted: Noted) -> None:
        """Notes that this range is done."""
        note = {"computed": noted.computed.to_text(), "failed": noted.failed.to_text(), "nulled": noted.nulled}
        self._objects.put(f"{self._folder}/{self._work.start}-{self._work.stop}", json.dumps(note).encode())

    def all(self) -> Noted | None:
        """Returns the notes of all ranges in one, or None if one is not done."""
        there = {path.rsplit("/", 1)[1] for path in self._objects.list(self._folder)}
        names = [f"{start}-{stop}" for start, stop in self._work.ranges]
        if not there.issuperset(names):
            return None
        computed, failed, nulled = RowSet.empty(), RowSet.empty(), 0
        for name in names:
            payload = self._objects.get(f"{self._folder}/{name}")
            if payload is None:
                return None
            note = json.loads(payload)
            computed |= RowSet.from_text(note["computed"])
            failed |= RowSet.from_text(note["failed"])
            nulled += note["nulled"]
        return Noted(computed=computed, failed=failed, nulled=nulled)
