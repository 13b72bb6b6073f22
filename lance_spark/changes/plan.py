"""Tasks of a change feed: :func:`plan_parts` and :func:`pack_parts`. Runs on the driver.

Reads manifests and transactions, and no rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from lance_spark.changes.errors import ChangeFeedError
from lance_spark.changes.steps import FeedStep
from lance_spark.commit.conflicts.history import event_of
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities, rebinds_names
from lance_spark.commit.conflicts.row_lineage import LineageFacts
from lance_spark.dataset import DatasetRef
from lance_spark.rebase.fragment_comparison import handles_of
from lance_spark.rebase.source_changes import affected

if TYPE_CHECKING:
    import lance

_TASK_ROWS = 1 << 18
"""Rows of fragments that a task takes together. A task costs 40 to 100 ms."""

_TASK_STEPS = 16
"""Steps that a task takes together. A task opens both versions of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """Fragments of a step.

    Attributes:
        step: The versions.
        new_ids: Fragments of the new version.
        old_ids: Fragments of the old version.
        only_inserts: Whether all rows of the new fragments are new.
        lineage: The moves of rows, or None.
        rows: Upper bound of the rows.
    """

    step: FeedStep
    new_ids: tuple[int, ...] = ()
    old_ids: tuple[int, ...] = ()
    only_inserts: bool = False
    lineage: LineageFacts | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTask(InputPartition):
    """A partition of a change feed."""

    parts: tuple[StepPart, ...]


def plan_parts(step: FeedStep, columns: Sequence[str] | None) -> Iterator[StepPart]:
    """Yields the parts of a step, a fragment each.

    Args:
        step: The versions.
        columns: Names of the compared columns; None compares all columns.

    Raises:
        ChangeFeedError: Without stable row ids, the step has changes other than appended rows.
    """
    before, after = step.before, step.after
    if before is None or _appends(step):
        yield from _appended(step)
        return
    if before == after:
        return
    look = affected(after, before, compared_fields(before.open(), after.open(), columns))
    if (look.now or look.then) and not after.open().has_stable_row_ids:
        if _only_moves(step):
            return
        raise _unstable(step)
    new_fragments = look.now
    if rebinds_names(before.open(), after.open(), columns):
        new_fragments = affected(
            after, None, ()
        ).now  # equal files may have other values under a name
    for number, rows in new_fragments:
        yield StepPart(step=step, new_ids=(number,), lineage=look.lineage, rows=rows)
    for number, rows in look.then:
        yield StepPart(step=step, old_ids=(number,), lineage=look.lineage, rows=rows)


def pack_parts(parts: Iterable[StepPart], task_rows: int = _TASK_ROWS) -> Iterator[ChangeTask]:
    """Yields tasks of consecutive parts."""
    packed: list[StepPart] = []
    rows, versions = 0, set[int | None]()
    for part in parts:
        version = part.step.after.version
        if packed and (rows + part.rows > task_rows or len(versions | {version}) > _TASK_STEPS):
            yield ChangeTask(parts=tuple(packed))
            packed, rows, versions = [], 0, set()
        packed.append(part)
        rows += part.rows
        versions.add(version)
    if packed:
        yield ChangeTask(parts=tuple(packed))


def compared_fields(
    before: lance.LanceDataset, after: lance.LanceDataset, columns: Sequence[str] | None
) -> tuple[FieldIdentity, ...]:
    """Returns the fields of compared columns in both versions."""
    fields = (*field_identities(before.lance_schema), *field_identities(after.lance_schema))
    return tuple(field for field in fields if columns is None or field.name in columns)


def _appended(step: FeedStep) -> Iterator[StepPart]:
    after = step.after.open()
    new_ids = frozenset(after.fragment_ids())
    if step.before is not None:
        new_ids -= frozenset(step.before.open().fragment_ids())
    for handle in handles_of(after, new_ids):
        if rows := handle.metadata.num_rows:
            yield StepPart(step=step, new_ids=(handle.fragment_id,), only_inserts=True, rows=rows)


def _appends(step: FeedStep) -> bool:
    """Tells whether a single Append makes the new version of the old version."""
    return _step_operation(step) == "Append"


def _only_moves(step: FeedStep) -> bool:
    return _step_operation(step) == "Rewrite"


def _step_operation(step: FeedStep) -> str | None:
    """Returns the operation of a step of consecutive versions, else None."""
    if step.before is None or (step.before.version or 0) + 1 != step.after.version:
        return None
    return operation_of(step.after)


@functools.lru_cache(maxsize=1024)
def operation_of(ref: DatasetRef) -> str:
    """Returns the operation of a pinned version. A process reads each transaction once."""
    return event_of(ref.open(), ref.version or 0).name


def _unstable(step: FeedStep) -> ChangeFeedError:
    version, operation = step.after.version or 0, _step_operation(step)
    return ChangeFeedError(
        f"Version {version} of {step.after.uri} has changes other than appended rows ({operation}), and the "
        "table has no stable row ids, which identify changed rows. Write the table anew with "
        "enable_stable_row_ids=True. Or read the changes of the versions that append rows, each range by itself.",
        uri=step.after.uri,
        version=version,
    )
