"""States of computed columns, from metadata and records. Starts no Spark job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lance_spark.backfill.planning.planner import PreparedBackfill, prepare
from lance_spark.backfill.planning.staleness import QUICK_BYTES, QUICK_FRAGMENTS, count_stale
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.reuse.round_context import fitting_records
from lance_spark.columns.binding import Binding, binding_of
from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError
from lance_spark.report.sources import find_problem
from lance_spark.report.states import ColumnState
from lance_spark.rows.row_set import RowSet
from lance_spark.views.definition import define, view_of

if TYPE_CHECKING:
    import lance

_VERSION_CHARS = 12


def column_states(
    ref: DatasetRef, dataset: lance.LanceDataset, *, checkpoints: str | None, most: int
) -> tuple[list[ColumnState], int]:
    """Returns the states of the first groups of computed columns, and the number of all groups."""
    groups = dict(_column_groups(dataset))
    states = [
        _problem_state(columns, "?", binding)
        if isinstance(binding, str)
        else _state_of(ref, dataset, columns, binding, checkpoints)
        for columns, binding in list(groups.items())[:most]
    ]
    return states, len(groups)


def _column_groups(dataset: lance.LanceDataset) -> Iterator[tuple[tuple[str, ...], Binding | str]]:
    """Yields the columns of each UDF with its binding, or with the reason of a missing binding."""
    for field in dataset.schema:
        if BINDING_KEY.encode() not in (field.metadata or {}):
            continue
        try:
            binding = binding_of(dataset, field.name)
        except LanceSparkError as error:
            yield (field.name,), str(error)
        else:
            if binding is not None:
                yield tuple(column for _, column in binding.columns), binding


def _find_problem(ref: DatasetRef, dataset: lance.LanceDataset, binding: Binding) -> str | None:
    """Returns why the inputs of a column of a view are not opened."""
    view = view_of(dataset) if binding.of_source else None
    return None if view is None else find_problem(ref, view)


def _state_of(
    ref: DatasetRef,
    dataset: lance.LanceDataset,
    columns: tuple[str, ...],
    binding: Binding,
    checkpoints: str | None,
) -> ColumnState:
    udf = f"{binding.udf_name}, version {binding.udf_version[:_VERSION_CHARS]}"
    request = BackfillRequest(columns=columns, plan_only=True)
    try:
        problem = _find_problem(ref, dataset, binding)
        if problem is None:
            state = _count(
                prepare(ref, request, checkpoints=checkpoints, define=define), columns, udf
            )
        else:
            state = _problem_state(columns, udf, problem)
    except LanceSparkError as error:
        state = _problem_state(columns, udf, str(error))
    return replace(state, is_kept=binding.auto_backfill)


def _problem_state(columns: tuple[str, ...], udf: str, problem: str) -> ColumnState:
    return ColumnState(columns=columns, udf=udf, problem=problem)


def _count(prepared: PreparedBackfill, columns: tuple[str, ...], udf: str) -> ColumnState:
    """Counts rows. Reads rows only of few small fragments; other counts are upper bounds."""
    unknown = [plan for plan in prepared.plans if plan.pending is None]
    scans = (
        len(unknown) <= QUICK_FRAGMENTS and sum(plan.input_bytes for plan in unknown) <= QUICK_BYTES
    )
    plans = prepared.with_counts(scan=scans)
    stale = count_stale(prepared, with_nulls=True, is_quick=True)
    pending = sum(plan.rows_to_do for plan in plans)
    return ColumnState(
        columns=columns,
        udf=udf,
        rows=sum(plan.live_rows for plan in plans),
        rows_pending=pending,
        rows_failed=min(pending, _count_failed(prepared)),
        rows_stale=stale.rows,
        rows_unverified=stale.unverified,
        is_exact=scans or not unknown,
    )


def _count_failed(prepared: PreparedBackfill) -> int:
    """Counts the rows whose latest record is a failure."""
    records = prepared.spec.records
    failed = 0
    if records is None:
        return failed
    for plan in prepared.plans:
        fragment = prepared.dataset.get_fragment(plan.fragment_id)
        if fragment is None:
            continue
        settled, failures = RowSet.empty(), RowSet.empty()
        for record in fitting_records(prepared.spec, fragment.metadata, records):
            failures |= record.failed - settled
            settled |= record.computed | record.failed
        failed += len(failures)
    return failed
