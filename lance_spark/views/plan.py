"""The plan of a refresh, for users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.dataset import DatasetRef
from lance_spark.errors import counted
from lance_spark.rebase.source_changes import affected
from lance_spark.rows.row_addresses import row_ids
from lance_spark.staging.area import Staging
from lance_spark.views.definition import define, existing_view, groups_of
from lance_spark.views.placement import SourceRows
from lance_spark.views.refresh_base import RefreshBase
from lance_spark.views.row_tasks import SEARCHED_ROWS, find_rows
from lance_spark.words import InWords


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RefreshPlan(InWords):
    """The plan of a refresh.

    Attributes:
        table_name: Name of the view.
        table_uri: Location of the view.
        source_uri: Location of the source.
        source_version: The requested version of the source.
        previous_version: The shown version; None before the first refresh.
        rebuilds: Whether the refresh computes all rows again, because the view has a table function
            or because a cleanup of the source removed the shown version.
        rows_added: Rows to add; in a chunker's view, rows of the source to chunk for the first
            time. 0 for a table function. For a query of Spark a maximum: changed rows count as
            removed and added, and the condition is not evaluated.
        rows_recomputed: Rows to rewrite; in a chunker's view, changed rows of the source. With more
            than a million changed rows, some may be new.
        rows_removed: Maximum number of rows to remove; in a chunker's view, rows of the source with
            chunks to remove.
        rows_pending: Rows without a value in columns of UDFs, summed over UDFs.
        new_source_fragments: Fragments of the source absent from the shown version.
        untouched_fragments: Unread fragments of the source.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        query = books.search(None).select(["id"]).where("price > 50")
        view = query.create_materialized_view(db, "expensive")
        assert (view.plan_refresh().rows_added, view.plan_refresh().has_work) == (4, True)
        ```
    """

    table_name: str
    table_uri: str
    source_uri: str
    source_version: int
    previous_version: int | None
    rebuilds: bool
    rows_added: int
    rows_recomputed: int
    rows_removed: int
    rows_pending: int
    new_source_fragments: int
    untouched_fragments: int

    @property
    def has_work(self) -> bool:
        """Whether a refresh would change a row."""
        return bool(self.rebuilds or self.rows_added or self.rows_recomputed or self.rows_removed or self.rows_pending)

    @property
    def text(self) -> str:
        """Summary of the plan."""
        before = "nothing" if self.previous_version is None else f"version {self.previous_version}"
        return (
            f"refresh of {self.table_name} from {before} to version {self.source_version} of {self.source_uri}: "
            f"{counted(self.rows_added, 'row')} to add, {self.rows_recomputed} to compute again, {self.rows_removed} "
            f"to remove, {counted(self.rows_pending, 'value')} of UDFs pending"
        )


def plan_refresh(ref: DatasetRef, src_version: int | None, *, table_name: str, checkpoints: str | None) -> RefreshPlan:
    """Returns the plan of a refresh. Runs on the driver, reads the changes, and writes nothing.

    Raises:
        ViewError, ViewSourceError, StableRowIdsError, VersionNotFoundError: The view cannot be
            refreshed.
    """
    definition = existing_view(ref.open_latest())
    start = RefreshBase.of(ref, definition.pin_source(ref, src_version))
    spec = start.spec(Staging(uri=ref.uri, job_id="plan"), 1)
    look = affected(start.source, None if start.is_current else start.base, spec.used)
    rows = SourceRows(spec)
    added = changed = removed = new = unknown = 0
    ids = [np.empty(0, dtype=np.int64)]
    is_whole = start.definition.makes_table
    for number, _ in () if start.is_current or is_whole else look.now:
        since = rows.since_base(number)
        new += len(since.new)
        unknown += since.unknown
        added += len(rows.matching(number, since.new))
        selected = rows.matching(number, since.changed)
        changed += len(selected)
        if spec.selects and not spec.makes_chunks and changed <= SEARCHED_ROWS:
            fragment = rows.rows.existing_fragment(number)
            ids.append(row_ids(fragment, selected.to_numpy()).astype(np.int64))
        removed += len(since.changed - selected)
    source, base = start.source.open(), None if start.base is None else start.base.open()
    if base is None:
        removed = start.dataset.count_rows()
    elif rows.difference is not None and (unknown or source.count_rows() != base.count_rows() + new):
        removed += sum(len(ids) for number, _ in look.then for ids in rows.difference.deleted_ids(number))
    some = np.sort(np.concatenate(ids))
    if len(some):  # rows newly selected by the view after a change
        found_rows = len(np.unique(find_rows(start.dataset, some)[0]))
        added, changed = added + len(some) - found_rows, changed - len(some) + found_rows
    if not spec.selects:  # changed rows are taken out and added again
        added, changed, removed = added + changed, 0, removed + changed
    base_fragments = set() if base is None else {handle.fragment_id for handle in base.get_fragments()}
    return RefreshPlan(
        table_name=table_name,
        table_uri=ref.uri,
        source_uri=source.uri,
        source_version=source.version,
        previous_version=None if start.shows is None else start.shows.version,
        rebuilds=is_whole or (start.shows is not None and start.base is None),
        rows_added=added,
        rows_recomputed=changed,
        rows_removed=removed,
        rows_pending=_pending(ref, start, checkpoints),
        new_source_fragments=0 if start.is_current else sum(number not in base_fragments for number, _ in look.now),
        untouched_fragments=len(source.get_fragments()) if start.is_current else look.untouched,
    )


def _pending(ref: DatasetRef, start: RefreshBase, checkpoints: str | None) -> int:
    if start.base is None or start.definition.function is not None:
        return 0
    requests = [BackfillRequest(columns=columns, plan_only=True) for _, columns in groups_of(start.dataset)]
    prepared = [prepare(ref, request, checkpoints=checkpoints, define=define) for request in requests]
    return sum(plan.rows_to_do for request in prepared for plan in request.work(scan=True))
