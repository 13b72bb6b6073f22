"""Notes that the ranges of one fragment leave for each other."""

from __future__ import annotations

import json
from typing import Any

from lance_spark.backfill.serving import FOLDER
from lance_spark.backfill.spec import BackfillSpec, FragmentWork
from lance_spark.checkpoints import LanceObjects
from lance_spark.commit.rowsets import RowSet


class Notes:
    """What the ranges of one fragment leave for whoever ends the last of them; they go with the job."""

    def __init__(self, spec: BackfillSpec, work: FragmentWork) -> None:
        self._objects = LanceObjects(f"{spec.snapshot.uri}/{FOLDER}", spec.snapshot.storage_options)
        # Each round of a job reads another version.
        self._folder = f"jobs/{spec.staging.job_id}/ranges/{spec.snapshot.version}-{work.fragment_id}"
        self._work = work

    def leave(self, computed: RowSet, failed: RowSet, *, touched: bool) -> None:
        """Notes that this range is done."""
        note = {"computed": computed.to_text(), "failed": failed.to_text(), "touched": touched}
        self._objects.put(f"{self._folder}/{self._work.start}-{self._work.stop}", json.dumps(note).encode())

    def all(self) -> list[dict[str, Any]] | None:
        """Returns the notes of all ranges, or None if one is not done."""
        there = {path.rsplit("/", 1)[1] for path in self._objects.list(self._folder)}
        names = [f"{start}-{stop}" for start, stop in self._work.ranges]
        if not there.issuperset(names):
            return None
        payloads = [self._objects.get(f"{self._folder}/{name}") for name in names]
        return None if any(payload is None for payload in payloads) else [json.loads(p) for p in payloads if p]
