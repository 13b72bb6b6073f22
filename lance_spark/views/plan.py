"""The plan of a refresh, for users."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.dataset import DatasetRef
from lance_spark.display import Displayable
from lance_spark.errors import counted
from lance_spark.rebase.source_changes import ChangedFragments, affected
from lance_spark.rows.row_addresses import row_ids
from lance_spark.staging.area import Staging
from lance_spark.views.definition import define, existing_view, groups_of
from lance_spark.views.placement import PlacementSpec, SourceRows
from lance_spark.views.refresh_base import RefreshBase
from lance_spark.views.row_tasks import SEARCHED_ROWS, find_rows

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RefreshPlan(Displayable):
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
        return bool(
            self.rebuilds
            or self.rows_added
            or self.rows_recomputed
            or self.rows_removed
            or self.rows_pending
        )

    @property
    def text(self) -> str:
        """Summary of the plan."""
        before = "nothing" if self.previous_version is None else f"version {self.previous_version}"
        return (
            f"refresh of {self.table_name} from {before} to version {self.source_version} of {self.source_uri}: "
            f"{counted(self.rows_added, 'row')} to add, {self.rows_recomputed} to compute again, {self.rows_removed} "
            f"to remove, {counted(self.rows_pending, 'value')} of UDFs pending"
        )


def plan_refresh(
    ref: DatasetRef, src_version: int | None, *, table_name: str, checkpoints: str | None
) -> RefreshPlan:
    """Returns the plan of a refresh. Runs on the driver, reads the changes, and writes nothing.

    Raises:
        ViewError, ViewSourceError, StableRowIdsError, VersionNotFoundError: The view cannot be
            refreshed.
    """
    view = ref.pin(None)
    definition = existing_view(view.open())
    start = RefreshBase.of(view, definition.pin_source(ref, src_version))
    spec = start.spec(Staging(uri=ref.uri, job_id="plan"), 1)
    changes = affected(start.source, None if start.is_current else start.base, spec.used)
    counts = _RowCounts.of(start, replace(spec, lineage=changes.lineage), changes)
    source = start.source.open()
    return RefreshPlan(
        table_name=table_name,
        table_uri=ref.uri,
        source_uri=source.uri,
        source_version=source.version,
        previous_version=None if start.shows is None else start.shows.version,
        rebuilds=start.definition.makes_table or (start.shows is not None and start.base is None),
        rows_added=counts.added,
        rows_recomputed=counts.changed,
        rows_removed=counts.removed,
        rows_pending=_pending(ref, start, checkpoints),
        new_source_fragments=0 if start.is_current else _count_new_fragments(start, changes),
        untouched_fragments=len(source.get_fragments()) if start.is_current else changes.untouched,
    )


@dataclass(slots=True)
class _RowCounts:
    """Counts of the rows to add, to change and to remove.

    Attributes:
        new: New rows of the source, selected or not.
        unknown: Possibly new rows of the source.
        changed_ids: Ids of changed rows, ascending in each array; not all of many rows.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    new: int = 0
    unknown: int = 0
    changed_ids: list[np.ndarray] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])

    @staticmethod
    def of(start: RefreshBase, spec: PlacementSpec, changes: ChangedFragments) -> _RowCounts:
        """Counts the rows of the changed fragments."""
        counts, rows = _RowCounts(), SourceRows(spec)
        if not start.is_current and not start.definition.makes_table:
            for number, _ in changes.now:
                counts._add_fragment(rows, number)
        if start.base is None:
            counts.removed = start.dataset.count_rows()
        elif start.may_lack_rows(new=counts.new, unknown=counts.unknown):
            counts.removed += sum(
                len(ids) for number, _ in changes.then for ids in rows.deleted_ids(number)
            )
        counts._separate_new(start.dataset)
        if spec.selects:
            return counts
        # A query of Spark removes changed rows, and adds them again.
        added, removed = counts.added + counts.changed, counts.removed + counts.changed
        return replace(counts, added=added, changed=0, removed=removed)

    def _add_fragment(self, rows: SourceRows, number: int) -> None:
        since = rows.since_base(number)
        selected = rows.matching(number, since.changed)
        self.new += len(since.new)
        self.unknown += since.unknown
        self.added += len(rows.matching(number, since.new))
        self.changed += len(selected)
        self.removed += len(since.changed - selected)
        if rows.spec.selects and not rows.spec.makes_chunks and self.changed <= SEARCHED_ROWS:
            fragment = rows.rows.existing_fragment(number)
            self.changed_ids.append(row_ids(fragment, selected.to_numpy()).astype(np.int64))

    def _separate_new(self, view: lance.LanceDataset) -> None:
        """Counts changed rows that the view lacks as rows to add: the view selects them newly."""
        ids = np.sort(np.concatenate(self.changed_ids))
        if len(ids):
            new = len(ids) - len(np.unique(find_rows(view, ids)[0]))
            self.added, self.changed = self.added + new, self.changed - new


def _count_new_fragments(start: RefreshBase, changes: ChangedFragments) -> int:
    base = (
        set()
        if start.base is None
        else {handle.fragment_id for handle in start.base.open().get_fragments()}
    )
    return sum(number not in base for number, _ in changes.now)


def _pending(ref: DatasetRef, start: RefreshBase, checkpoints: str | None) -> int:
    if start.base is None or start.definition.function is not None:
        return 0
    requests = [
        BackfillRequest(columns=columns, plan_only=True) for _, columns in groups_of(start.dataset)
    ]
    prepared = [
        prepare(ref, request, checkpoints=checkpoints, define=define) for request in requests
    ]
    return sum(plan.rows_to_do for request in prepared for plan in request.work(scan=True))
