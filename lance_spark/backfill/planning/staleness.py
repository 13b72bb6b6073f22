"""How many rows of a computed column are out of date. Runs on the driver, without Spark.

A value is up to date where a record says that this version of the UDF computed it from the inputs
that the row has. Records are of fragments; where rows were moved by an update, or inputs were
rewritten in place, the rows' inputs are compared with those of an older version.
"""

from __future__ import annotations

from dataclasses import replace

from lance_spark.backfill.planning.fragment_plan import FragmentPlan, countable
from lance_spark.backfill.planning.planner import Prepared, bases_of_records
from lance_spark.backfill.planning.selection import RangeRows, has_values
from lance_spark.backfill.reuse.round_context import RoundContext, target_files
from lance_spark.backfill.reuse.value_finder import ValueFinder
from lance_spark.rows.merge import FilePiece
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet

MAX_COMPARED_BYTES = 1 << 30
"""Bytes of input up to which inputs are compared on the driver; beyond that rows of a fragment that
changed all count."""


def count_stale(prepared: Prepared, *, but_selected: bool) -> int:
    """Returns how many rows of the window have a value that is out of date.

    Exact where the fragments concerned are few enough to be looked at (1,000 fragments, 20 M rows,
    1 GiB of inputs); beyond that, rows that may be out of date count. `but_selected` leaves out the
    rows that the backfill selects.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    spec = prepared.spec
    if spec.joins or (but_selected and spec.where is None and spec.recomputes):
        return 0
    suspects = [plan for plan in prepared.plans if _is_suspect(prepared, plan)]
    if not suspects:
        return 0
    if not countable(suspects) or sum(plan.input_bytes for plan in suspects) > MAX_COMPARED_BYTES:
        return sum(max(0, plan.live_rows - len(plan.done.computed)) for plan in suspects)
    context = RoundContext(replace(spec, bases=bases_of_records(prepared.records, spec)))
    rows = SnapshotRows(prepared.dataset)
    finder = ValueFinder(context, rows)
    committed = prepared.records.files_of(spec.key.digest)
    return sum(len(_stale_rows(context, rows, finder, committed, plan, but_selected=but_selected)) for plan in suspects)


def _is_suspect(prepared: Prepared, plan: FragmentPlan) -> bool:
    handle = prepared.dataset.get_fragment(plan.fragment_id)
    if handle is None or not has_values(handle.metadata, prepared.spec.target_ids):
        return False
    return len(plan.done.computed) < plan.physical_rows


def _stale_rows(
    context: RoundContext,
    rows: SnapshotRows,
    finder: ValueFinder,
    committed: frozenset[str],
    plan: FragmentPlan,
    *,
    but_selected: bool,
) -> RowSet:
    """Returns the rows of a fragment whose value is out of date.

    `committed` are the column files that records of this UDF version name.
    """
    spec = context.spec
    fragment = rows.fragment(plan.fragment_id)
    if fragment is None:
        return RowSet.empty()
    within = RangeRows(spec, rows, fragment, 0, plan.physical_rows)
    known = (plan.done | finder.inherited(fragment.metadata)).computed
    suspects = within.with_value()
    if not but_selected or spec.where is not None:
        # Rows that were computed as NULL; without a filter they are selected anyway where that is
        # out of date.
        suspects |= finder.computed_once(fragment.metadata) & within.live
    suspects -= known
    if suspects and but_selected and spec.where is not None:
        suspects -= within.matching(spec.where)
    if not suspects:
        return suspects
    # That a value can be had from somewhere does not mean that the table has it: its file must be
    # in place, or the rows have moved with it.
    recorded = {record.target_file for record in context.records.of(plan.fragment_id)}
    present = (committed - recorded) | target_files(spec, fragment.metadata)
    for piece in finder.find(fragment.metadata, suspects).pieces:
        if isinstance(piece, FilePiece) and piece.file in present:
            suspects -= RowSet.of(piece.offsets)
    return suspects
