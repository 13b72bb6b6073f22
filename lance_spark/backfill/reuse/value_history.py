"""Finds outdated values of a column in the history of the table.

A value is outdated if the row had other inputs when the value was written. The search follows the
table back from version to version, until a row has another value or does not exist. The next
version wrote the value.

A commit of lance-spark records the version of its inputs. Lance may place the commit after commits
of concurrent writers, and the process may die before it compares them. Then the search compares the
value with the inputs of the recorded version.

Records of a UDF's results decide first: they have the inputs of a value, and its UDF version.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_spark.backfill.reuse.round_context import RoundContext, Step, source_of, target_files
from lance_spark.commit.conflicts.identity import (
    FieldIdentity,
    FragmentIdentity,
    field_identities,
    fragment_identity,
)
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
    """Rows of a fragment with outdated values.

    Attributes:
        stale: Rows with certainly changed inputs, or with a value of another UDF version.
        unverified: Rows that may be outdated: their history was cleaned up, or the table has no
            stable row ids and an update moved the rows.
    """

    stale: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    unverified: RowSet = RowSet.empty()  # noqa: RUF009

    @property
    def rows(self) -> RowSet:
        """All outdated rows, certain or not."""
        return self.stale | self.unverified


class ValueHistory:
    """Finds outdated values of a version. Belongs to one thread."""

    def __init__(self, context: RoundContext, rows: SnapshotRows) -> None:
        self._context = context
        self.spec = context.spec
        self.rows = rows
        self.matches = context.matches
        self._origins: dict[int, Origins] = {}

    @functools.cached_property
    def _targets(self) -> list[FieldIdentity]:
        """The target columns. Few fragments have outdated rows to look for."""
        names = {column for _, column in self.spec.outputs}
        identities = field_identities(self.rows.dataset.lance_schema)
        return [column for column in identities if column.name in names]

    def judge(self, fragment: FragmentMetadata, suspects: RowSet) -> OutOfDate:
        """Returns the outdated rows of a fragment among some rows with a value.

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
            stale=run.stale,
            unverified=run.lost | self._without_record(fragment, run.left | run.suspended),
        )

    def _follow(self, run: _Followed, fragment: FragmentMetadata, number: int, step: Step) -> None:
        """Decides about rows with another value in an older version, and about missing rows."""
        if number not in self._origins:
            self._origins[number] = Origins(step.base, self.rows, step.lineage, self.spec.inputs)
        origins = self._origins[number]
        fragment_origins = origins.of(fragment)
        run.decide_written(step)
        if step.is_gap and step.base is not None:
            run.suspend(run.left - fragment_origins.known)
        run.decide(run.left - fragment_origins.known)
        if step.base is None:
            return
        run.lose(RowSet.of(fragment_origins.unknown))
        for origin in fragment_origins.origins:
            rows = run.left & RowSet.of(origin.mapping.new)
            identity = self._identity(origin.fragment)
            if not rows or identity in run.compared:
                continue
            run.compared.add(identity)
            try:
                followed = rows - functools.reduce(
                    operator.or_, run.written.values(), RowSet.empty()
                )
                same_valued = rows - self._written(step.base, origin, fragment, followed)
                changed = origins.changed(fragment, origin, same_valued)
            except TableUnreadableError as error:
                _LOG.warning(
                    "values of version %s of %s are not compared: %s",
                    step.base.version,
                    step.base.uri,
                    error,
                )
                run.lose(rows)
                continue
            if step.is_gap:
                # The order of the changes of value and inputs is unknown.
                run.lose(origins.changed(fragment, origin, rows - same_valued))
            run.differing = (run.differing - same_valued) | changed
            run.find_written(rows - same_valued, step)
            self._decide_by_records(run, origin.fragment, origin.mapping)

    def _written(
        self, base: lance.LanceDataset, origin: Origin, fragment: FragmentMetadata, rows: RowSet
    ) -> RowSet:
        """Returns the rows with another value in the older version."""
        mapping = origin.mapping.restrict_to(rows)
        flags = changed_rows(
            SnapshotRows(base), origin.fragment.id, self.rows, fragment.id, mapping, self._targets
        )
        return RowSet.of(mapping.new[flags])

    def _decide_by_records(
        self, run: _Followed, fragment: FragmentMetadata, moved: RowMapping | None
    ) -> None:
        """Decides about rows with a recorded value file."""
        files = target_files(self.spec, fragment)
        for record in self._context.records.of(fragment.id) if run.left and len(files) == 1 else ():
            if record.physical_rows != fragment.physical_rows or record.target_file not in files:
                continue
            computed = run.left & (
                record.computed if moved is None else moved.new_rows(record.computed)
            )
            if record.key != self.spec.key.digest and not record.is_of_load:
                run.find_stale(computed)
            elif record.key == self.spec.key.digest and record.source == source_of(
                self.spec, fragment
            ):
                run.decide(computed)

    def _without_record(self, fragment: FragmentMetadata, rows: RowSet) -> RowSet:
        """Returns the rows that may be outdated if the history ends before a decision.

        Only values of a UDF may be outdated: values from other input files, or values of rows that
        moved from another fragment.
        """
        if not rows:
            return rows
        records = self._context.records.of(fragment.id)
        sources = {record.source for record in records if not record.is_of_load}
        same = sources <= {source_of(self.spec, fragment)}
        return RowSet.empty() if same and fragment.id <= self._first_left else rows

    @functools.cached_property
    def _first_left(self) -> float:
        """The first fragment with values of a UDF that lost rows; infinity without a fragment."""
        records, head = self._context.records, self.rows
        if not records.has_udf_values:
            return math.inf
        handles = ((number, head.fragment(number)) for number in sorted(records.fragment_ids))
        numbers = (
            number for number, handle in handles if handle is None or handle.metadata.num_deletions
        )
        return next(numbers, math.inf)

    def _identity(self, fragment: FragmentMetadata) -> FragmentIdentity:
        return fragment_identity(fragment, self.spec.input_ids, self.spec.target_ids)

    def _is_cast(self, step: Step) -> bool:
        """Tells whether a target was cast since then. Its older values are in another column."""
        if step.base is None:
            return False
        then = {column.name: column.id for column in field_identities(step.base.lance_schema)}
        return any(then.get(column.name, column.id) != column.id for column in self._targets)


@dataclass(slots=True, kw_only=True)
class _Followed:
    """Rows of a fragment on their way back through the history.

    Attributes:
        left: Undecided rows.
        differing: Rows whose inputs in the current version of the walk differ from the latest.
        stale: Outdated rows.
        lost: Rows without a known older version, and with unchanged inputs up to their last one.
        suspended: Rows missing in an older version before a gap in the history.
        compared: Compared fragments, by their files.
        written: Rows with a value written for an older version, by that version.
    """

    left: RowSet
    differing: RowSet = RowSet.empty()  # noqa: RUF009 - immutable
    stale: RowSet = RowSet.empty()  # noqa: RUF009
    lost: RowSet = RowSet.empty()  # noqa: RUF009
    suspended: RowSet = RowSet.empty()  # noqa: RUF009
    compared: set[FragmentIdentity]
    written: dict[int, RowSet] = field(default_factory=dict)

    def find_written(self, rows: RowSet, step: Step) -> None:
        """Adds rows with a value of the step."""
        if step.inputs_at is None:
            self.decide(rows)
        else:
            self.written[step.inputs_at] = self.written.get(step.inputs_at, RowSet.empty()) | (
                self.left & rows
            )

    def decide_written(self, step: Step | None) -> None:
        """Decides about rows with compared inputs; without a step about all rows."""
        for version, rows in [*self.written.items()]:
            if step is None or (
                step.base is not None and not step.is_gap and step.base.version < version
            ):
                self.decide(rows)
            elif step.base is None or step.is_gap:
                self.lose(rows)
            else:
                continue
            del self.written[version]

    def decide(self, rows: RowSet) -> None:
        """Decides about rows whose value was written in the current version of the walk."""
        self.find_stale(self.left & rows & self.differing)
        self.left -= rows

    def find_stale(self, rows: RowSet) -> None:
        """Decides that rows are outdated."""
        self.stale, self.left = self.stale | rows, self.left - rows

    def suspend(self, rows: RowSet) -> None:
        """Leaves rows to the records."""
        self.find_stale(self.left & rows & self.differing)
        self.suspended, self.left = self.suspended | (self.left & rows), self.left - rows

    def lose(self, rows: RowSet) -> None:
        """Gives up rows without a known older version."""
        self.find_stale(self.left & rows & self.differing)
        self.lost, self.left = self.lost | (self.left & rows), self.left - rows
