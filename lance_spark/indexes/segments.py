"""Segments of an index: as JSON, and as runs of a table's fragments."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lance.dataset import Index

FOLDER = "_indices"
"""Lance's folder of the segments of a table, with a folder for each segment."""


def segment_to_json(segment: Index) -> str:
    """Returns an uncommitted segment as JSON."""
    details = segment.index_details
    return json.dumps(
        {
            "uuid": segment.uuid,
            "name": segment.name,
            "fields": list(segment.fields),
            "dataset_version": segment.dataset_version,
            "fragment_ids": sorted(segment.fragment_ids),
            "index_version": segment.index_version,
            "created_at": None if segment.created_at is None else segment.created_at.isoformat(),
            "base_id": segment.base_id,
            "files": [[file.path, file.size_bytes] for file in segment.files or ()],
            "details": None
            if details is None
            else [details[0], base64.b64encode(details[1]).decode()],
            "covering_fields": list(segment.covering_fields),
        }
    )


def segment_of_json(text: str) -> Index:
    """Returns the segment from the text of :func:`segment_to_json`."""
    from lance.dataset import Index, IndexFile

    values: dict[str, Any] = json.loads(text)
    created, details = values["created_at"], values["details"]
    return Index(
        uuid=values["uuid"],
        name=values["name"],
        fields=values["fields"],
        dataset_version=values["dataset_version"],
        fragment_ids=_bitmap(values["fragment_ids"]),
        index_version=values["index_version"],
        created_at=None if created is None else datetime.fromisoformat(created),
        base_id=values["base_id"],
        files=[IndexFile(path=path, size_bytes=size) for path, size in values["files"]],
        index_details=None if details is None else (details[0], base64.b64decode(details[1])),
        covering_fields=values["covering_fields"],
    )


def named_segment(uuid: str, name: str) -> Index:
    """Returns the fields of a committed segment that Lance needs for its removal."""
    from lance.dataset import Index

    return Index(
        uuid=uuid,
        name=name,
        fields=[],
        dataset_version=0,
        fragment_ids=_bitmap([]),
        index_version=0,
    )


def narrowed(segment: Index, fragment_ids: Sequence[int]) -> Index:
    """Returns a segment with fewer fragments."""
    return replace(segment, fragment_ids=_bitmap(sorted(fragment_ids)))


def _bitmap(fragment_ids: Sequence[int]) -> Any:  # noqa: ANN401 - pylance says Bitmap, and takes any set
    return set(fragment_ids)


def cut(
    fragments: Sequence[tuple[int, int]], *, task_rows: int, most: int
) -> list[tuple[int, ...]]:
    """Cuts fragments, given with their rows, into runs of about equal numbers of rows.

    Runs are contiguous, because Lance does not compact fragments inside the gaps of a segment.

    Args:
        fragments: Ids with rows, in the order of the table.
        task_rows: Minimum rows of a run, unless it is the only run.
        most: Maximum number of runs.
    """
    total = sum(rows for _, rows in fragments)
    run_count = max(1, min(most, total // task_rows, len(fragments)))
    runs: list[list[int]] = [[] for _ in range(run_count)]
    before = 0
    for number, rows in fragments:
        # By the middle of the fragment, independent of its length.
        runs[min(run_count - 1, (2 * before + rows) * run_count // (2 * max(total, 1)))].append(
            number
        )
        before += rows
    return [tuple(run) for run in runs if run] or [()]
