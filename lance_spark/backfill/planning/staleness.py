"""Counts the outdated rows of a computed column. Runs on the driver, without Spark.

For most fragments the records prove that this version of the UDF computed all values from the
current inputs. For other fragments the history of the table decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lance_spark.backfill.planning.fragment_plan import FragmentPlan, countable
from lance_spark.backfill.planning.planner import PreparedBackfill
from lance_spark.backfill.planning.selection import has_values
from lance_spark.backfill.reuse.round_context import RoundContext, computed_once, current_rows
from lance_spark.backfill.reuse.value_history import OutOfDate, ValueHistory
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet

MAX_COMPARED_BYTES = 1 << 30
"""Maximum bytes of input that the driver compares. Beyond this limit all rows of a changed fragment
count."""

QUICK_FRAGMENTS = 50
QUICK_BYTES = 64 << 20
"""The same limits for an overview of all columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCount:
    """Number of rows with an outdated value. The `unverified` rows may be up to date.

    Attributes:
        current: Fragments whose values were compared and are all up to date.
    """

    rows: int = 0
    unverified: int = 0
    current: frozenset[int] = frozenset()


def count_stale(
    prepared: PreparedBackfill,
    *,
    with_nulls: bool,
    but_selected: bool = False,
    is_quick: bool = False,
) -> StaleCount:
    """Counts the rows of the window with an outdated value.

    The count is exact for up to 1,000 suspect fragments with 20 M rows and 1 GiB of inputs, or with
    `is_quick` 50 fragments and 64 MiB. Beyond these limits every suspect row counts. `with_nulls`
    also counts rows computed as NULL. `but_selected` skips the rows that the backfill selects.

    Raises:
        FilterError: The filter fails on a value.
        TableUnreadableError: A file is missing or damaged.
    """
    spec = prepared.spec
    if not spec.value_source.is_computed or (but_selected and spec.row_selector.selects_outdated):
        return StaleCount()
    suspects = [plan for plan in prepared.plans if _is_suspect(prepared, plan)]
    if not suspects:
        return StaleCount()
    if not _are_comparable(suspects, is_quick=is_quick):
        most = sum(max(0, plan.live_rows - len(plan.recorded_rows.computed)) for plan in suspects)
        return StaleCount(rows=most, unverified=most)
    context = RoundContext(spec, prepared.bases)
    context.begin_task([plan.fragment_id for plan in suspects])
    history = ValueHistory(context, SnapshotRows(prepared.dataset))
    stale = {
        plan.fragment_id: _stale_rows(
            context, history, plan, with_nulls=with_nulls, but_selected=but_selected
        )
        for plan in suspects
    }
    return StaleCount(
        rows=sum(len(rows.rows) for rows in stale.values()),
        unverified=sum(len(rows.unverified) for rows in stale.values()),
        current=frozenset(number for number, rows in stale.items() if not rows.rows),
    )


def _are_comparable(suspects: Sequence[FragmentPlan], *, is_quick: bool) -> bool:
    if is_quick and len(suspects) > QUICK_FRAGMENTS:
        return False
    most_bytes = QUICK_BYTES if is_quick else MAX_COMPARED_BYTES
    return countable(suspects) and sum(plan.input_bytes for plan in suspects) <= most_bytes


def _is_suspect(prepared: PreparedBackfill, plan: FragmentPlan) -> bool:
    handle = prepared.dataset.get_fragment(plan.fragment_id)
    if handle is None or not has_values(handle.metadata, prepared.spec.target_ids):
        return False
    if len(plan.recorded_rows.computed) >= plan.physical_rows:
        return False
    records = prepared.spec.records
    current = (
        RowSet.empty() if records is None else current_rows(prepared.spec, handle.metadata, records)
    )
    return len(plan.recorded_rows.computed | current) < plan.physical_rows


def _stale_rows(
    context: RoundContext,
    history: ValueHistory,
    plan: FragmentPlan,
    *,
    with_nulls: bool,
    but_selected: bool,
) -> OutOfDate:
    """Returns the rows of a fragment with an outdated value."""
    spec, within = context.spec, plan.rows(history)
    suspects = within.with_value()
    if with_nulls:
        suspects |= computed_once(spec, within.fragment.metadata, context.records) & within.live
    suspects -= plan.recorded_rows.computed
    if suspects and but_selected and spec.where is not None:
        suspects -= within.matching(spec.where)
    return within.judge(suspects)
