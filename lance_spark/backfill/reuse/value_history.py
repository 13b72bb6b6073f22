"""Which values of a column are out of date, as the history of the table tells.

A value is out of date if the row has other inputs now than when the value was written. So the table
is followed back, from version to version, until a row has another value or is not there: the value
was written in the version after that.

A commit of ours knows the inputs of the version that it was made for. Lance may put it behind
commits of others, and the process may die before it looks at these. Such a value is compared with
the inputs of that version.

Records of what a UDF computed decide first: they name the inputs of a value, and its UDF version.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.backfill.reuse.ancestry import Step
from lance_spark.backfill.reuse.round_context import RoundContext, source_of, target_files
from lance_spark.commit.conflicts.identity import FragmentIdentity, field_identities, fragment_identity
from lance_spark.errors import TableUnreadableError
from lance_spark.rebase.changed_inputs import changed_rows
from lance_spark.rebase.row_origins import Origin, Origins
from lance_spark.rows.merge import RowMapping
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.rows.row_set import RowSet

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfDate:
    """Rows of a fragment whose values are out of date.

    Attributes:
        stale: Rows whose inputs certainly changed, or whose value another UDF version computed.
        unverified: Rows that may be out of date: the history that tells was cleaned up, or the
            table has no stable row ids and an update moved the rows.
    """

    stale: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    unverified: RowSet = RowSet.empty()  # noqa: RUF009

    @property
    def rows(self) -> RowSet:
        """All of these rows."""
        return self.stale | self.unverified


class ValueHistory:
    """Tells which values of a version are out of date. Belongs to one thread."""

    def __init__(self, context: RoundContext, rows: SnapshotRows) -> None:
        self._context = context
        self._spec = context.spec
        self._rows = rows
        names = {column for _, column in context.spec.outputs}
        self._targets = [column for column in field_identities(rows.dataset.lance_schema) if column.name in names]
        self._origins: dict[int, Origins] = {}

    def judge(self, fragment: FragmentMetadata, suspects: RowSet) -> OutOfDate:
        """Returns the rows of a fragment, among some rows with a value, whose value is out of date.

        Raises:
            TableUnreadableError: A file of the latest version is missing or damaged.
        """
        run = _Followed(left=suspects, compared={self._identity(fragment)})
        self._decide_by_records(run, fragment, None)
        for number, step in enumerate(self._context.ancestry):
            if not run.left or self._is_cast(step):
                break
            self._follow(run, fragment, number, step)
        else:
            run.decide_written(None)
            if self._context.ancestry.end == "first version":
                run.decide(run.left)
            elif self._context.ancestry.end == "UDF bound":
                run.find_stale(run.left)
        run.find_stale(run.left & run.differing)
        return OutOfDate(
            stale=run.stale, unverified=run.lost | self._without_record(fragment, run.left | run.suspended)
        )

    def _follow(self, run: _Followed, fragment: FragmentMetadata, number: int, step: Step) -> None:
        """Decides about the rows that have another value in an older version, or are not there."""
        if number not in self._origins:
            self._origins[number] = Origins(step.base, self._rows, step.lineage, self._spec.inputs)
        origins = self._origins[number]
        found = origins.of(fragment)
        run.decide_written(step)
        if step.is_gap and step.base is not None:
            run.suspend(run.left - found.known)
        run.decide(run.left - found.known)
        if step.base is None:
            return
        run.lose(RowSet.of(found.unknown))
        for origin in found.origins:
            rows = run.left & RowSet.of(origin.mapping.new)
            identity = self._identity(origin.fragment)
            if not rows or identity in run.compared:
                continue
            run.compared.add(identity)
            try:
                followed = rows - functools.reduce(operator.or_, run.written.values(), RowSet.empty())
                kept = rows - self._written(step.base, origin, fragment, followed)
                changed = origins.changed(fragment, origin, kept)
            except TableUnreadableError as error:
                _LOG.warning("values of version %s of %s are not compared: %s", step.base.version, step.base.uri, error)
                run.lose(rows)
                continue
            if step.is_gap:
                # Nothing tells which came first, the value or the inputs.
                run.lose(origins.changed(fragment, origin, rows - kept))
            run.differing = (run.differing - kept) | changed
            run.find_written(rows - kept, step)
            self._decide_by_records(run, origin.fragment, origin.mapping)

    def _written(self, base: lance.LanceDataset, origin: Origin, fragment: FragmentMetadata, rows: RowSet) -> RowSet:
        """Returns the rows that have another value in the older version."""
        moved = origin.mapping.restrict_to(rows)
        flags = changed_rows(SnapshotRows(base), origin.fragment.id, self._rows, fragment.id, moved, self._targets)
        return RowSet.of(moved.new[flags])

    def _decide_by_records(self, run: _Followed, fragment: FragmentMetadata, moved: RowMapping | None) -> None:
        """Decides about rows whose value is in a file of which a record tells who computed it."""
        files = target_files(self._spec, fragment)
        for record in self._context.records.of(fragment.id) if run.left and len(files) == 1 else ():
            if record.physical_rows != fragment.physical_rows or record.target_file not in files:
                continue
            computed = run.left & (record.computed if moved is None else moved.new_rows(record.computed))
            if record.key != self._spec.key.digest and not record.is_of_load:
                run.find_stale(computed)
            elif record.key == self._spec.key.digest and record.source == source_of(self._spec, fragment):
                run.decide(computed)

    def _without_record(self, fragment: FragmentMetadata, rows: RowSet) -> RowSet:
        """Returns the rows that may be out of date, where the history ends before it tells.

        Only values that a UDF computed may be: of other input files than the fragment has now, or
        in another fragment, from which the rows moved.
        """
        if not rows:
            return rows
        records = self._context.records.of(fragment.id)
        sources = {record.source for record in records if not record.is_of_load}
        same = sources <= {source_of(self._spec, fragment)}
        return RowSet.empty() if same and fragment.id <= self._first_left else rows

    @functools.cached_property
    def _first_left(self) -> float:
        """The first fragment that rows have left, with values of a UDF; infinity without any."""
        records, head = self._context.records, self._rows
        if not records.has_udf_values:
            return math.inf
        found = ((number, head.fragment(number)) for number in sorted(records.fragment_ids))
        left = (number for number, handle in found if handle is None or handle.metadata.num_deletions)
        return next(left, math.inf)

    def _identity(self, fragment: FragmentMetadata) -> FragmentIdentity:
        return fragment_identity(fragment, self._spec.input_ids, self._spec.target_ids)

    def _is_cast(self, step: Step) -> bool:
        """Tells whether a target has been cast since: its older values are in another column."""
        if step.base is None:
            return False
        then = {column.name: column.id for column in field_identities(step.base.lance_schema)}
        return any(then.get(column.name, column.id) != column.id for column in self._targets)


@dataclass(slots=True, kw_only=True)
class _Followed:
    """Rows of a fragment that are followed back.

    Attributes:
        left: Rows that are not decided yet.
        differing: Rows whose inputs in the version that was reached are not those of the latest
            version.
        stale: Rows that are out of date.
        lost: Rows that cannot be followed further, with inputs that have not changed until there.
        suspended: Rows that are not in an older version, where versions after that were cleaned up.
        compared: Fragments, by their files, whose rows have been compared.
        written: Rows whose value a commit for an older version wrote, by that version.
    """

    left: RowSet
    differing: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    stale: RowSet = RowSet.empty()  # noqa: RUF009
    lost: RowSet = RowSet.empty()  # noqa: RUF009
    suspended: RowSet = RowSet.empty()  # noqa: RUF009
    compared: set[FragmentIdentity]
    written: dict[int, RowSet] = field(default_factory=dict)

    def find_written(self, rows: RowSet, step: Step) -> None:
        """Takes rows whose value the step wrote."""
        if step.inputs_at is None:
            self.decide(rows)
        else:
            self.written[step.inputs_at] = self.written.get(step.inputs_at, RowSet.empty()) | (self.left & rows)

    def decide_written(self, step: Step | None) -> None:
        """Ends with rows whose inputs have been compared, without a step with all."""
        for version, rows in [*self.written.items()]:
            if step is None or (step.base is not None and not step.is_gap and step.base.version < version):
                self.decide(rows)
            elif step.base is None or step.is_gap:
                self.lose(rows)
            else:
                continue
            del self.written[version]

    def decide(self, rows: RowSet) -> None:
        """Ends with rows whose value was written in the version that was reached."""
        self.find_stale(self.left & rows & self.differing)
        self.left -= rows

    def find_stale(self, rows: RowSet) -> None:
        """Ends with rows whose value is out of date."""
        self.stale, self.left = self.stale | rows, self.left - rows

    def suspend(self, rows: RowSet) -> None:
        """Ends with rows of which only records may tell more."""
        self.find_stale(self.left & rows & self.differing)
        self.suspended, self.left = self.suspended | (self.left & rows), self.left - rows

    def lose(self, rows: RowSet) -> None:
        """Ends with rows of which nothing older is known."""
        self.find_stale(self.left & rows & self.differing)
        self.lost, self.left = self.lost | (self.left & rows), self.left - rows
