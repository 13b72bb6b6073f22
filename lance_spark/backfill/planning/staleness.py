"""How many rows of a computed column are out of date. Runs on the driver, without Spark.

A value is up to date where a record says that this version of the UDF computed it from the inputs that the row has. Records are of fragments;
where rows were moved by an update, or inputs were rewritten in place, the rows' inputs are compared with those of an older version.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.backfill.planning.fragment_plan import FragmentPlan, countable
from lance_spark.backfill.planning.planner import Prepared, bases_of_records
from lance_spark.backfill.planning.selection import has_values, live_rows, matching_rows, without
from lance_spark.backfill.reuse.computed_rows import Records
from lance_spark.backfill.reuse.value_finder import Finder, store_of
from lance_spark.backfill.task.messages import BackfillSpec, DoneRows, FragmentWork
from lance_spark.commit.conflicts.identity import files_of
from lance_spark.rows.merge import Offsets, distinct, no_rows
from lance_spark.rows.row_addresses import SnapshotRows

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

MAX_COMPARED_BYTES = 1 << 30
"""Bytes of input up to which inputs are compared on the driver; beyond that rows of a fragment that changed all count."""


def count_stale(prepared: Prepared, *, but_selected: bool) -> int:
    """Returns how many rows of the window have a value that is out of date.

    Exact where the fragments concerned are few enough to be looked at (1,000 fragments, 20 M rows, 1 GiB of inputs); beyond that, rows that
    may be out of date count.

    Args:
        prepared: The backfill.
        but_selected: Whether to leave out the rows that it selects.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    spec = prepared.spec
    if but_selected and spec.where is None and spec.recomputes:
        return 0
    suspects = [plan for plan in prepared.plans if _is_suspect(prepared, plan)]
    if not suspects:
        return 0
    if not countable(suspects) or sum(plan.input_bytes for plan in suspects) > MAX_COMPARED_BYTES:
        return sum(max(0, plan.live_rows - len(plan.done.computed)) for plan in suspects)
    spec = replace(spec, bases=bases_of_records(prepared.records, spec))
    rows = SnapshotRows(prepared.dataset)
    finder = Finder(spec, rows, store_of(spec))
    committed = prepared.records.files_of(spec.key.digest)
    look = functools.partial(_stale_rows, spec, rows, finder, prepared.records, committed, but_selected=but_selected)
    return sum(len(look(plan)) for plan in suspects)


def _is_suspect(prepared: Prepared, plan: FragmentPlan) -> bool:
    handle = prepared.dataset.get_fragment(plan.fragment_id)
    if handle is None or not has_values(handle.metadata, prepared.spec.target_ids):
        return False
    return len(plan.done.computed) < plan.physical_rows


def _stale_rows(
    spec: BackfillSpec,
    rows: SnapshotRows,
    finder: Finder,
    records: Records,
    committed: frozenset[str],
    plan: FragmentPlan,
    *,
    but_selected: bool,
) -> Offsets:
    """Returns the rows of a fragment whose value is out of date; `committed` are the column files that records of this UDF version name."""
    fragment = rows.fragment(plan.fragment_id)
    if fragment is None:
        return no_rows()
    work = FragmentWork(
        fragment_id=plan.fragment_id,
        start=0,
        stop=plan.physical_rows,
        ranges=((0, plan.physical_rows),),
        done=DoneRows(),
        search=True,
    )
    known = (plan.done | finder.inherited(fragment.metadata)).computed
    found = _with_value(spec, work, rows, fragment)
    if not but_selected or spec.where is not None:
        # Rows that were computed as NULL; without a filter they are selected anyway where that is out of date.
        once = np.intersect1d(finder.computed_once(fragment.metadata), live_rows(rows, work), assume_unique=True)
        found = distinct(found, once)
    found = without(found, known.to_numpy())
    if len(found) and but_selected and spec.where is not None:
        found = without(found, matching_rows(rows.dataset, fragment, work, spec.where))
    if not len(found):
        return found
    # That a value can be had from somewhere does not mean that the table has it: its file must be there, or the rows have moved with it.
    has = committed - {record.target_file for record in records.of(plan.fragment_id)}
    has |= {file.partition(":")[0] for file in files_of(fragment.metadata, spec.target_ids)} & committed
    served = finder.find(fragment.metadata, found, found)
    return without(found, distinct(no_rows(), *(piece.offsets for piece in served.files if piece.file in has)))


def _with_value(spec: BackfillSpec, work: FragmentWork, rows: SnapshotRows, fragment: LanceFragment) -> Offsets:
    """Returns the rows of which some target column has a value, ascending."""
    filled = " OR ".join(f"`{column}` IS NOT NULL" for _, column in spec.outputs)
    found = matching_rows(rows.dataset, fragment, work, filled)
    return np.intersect1d(found, live_rows(rows, work), assume_unique=True)
