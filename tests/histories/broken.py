"""Broken replacements for functions of the product, used by mutants. Each takes the right function and returns a broken
function.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from lance_spark.rows.row_set import RowSet

Replace = Callable[[Any], Any]
"""Makes the broken function from the right one."""


def owner_of(place: str) -> tuple[Any, str]:
    """Returns the module or class of a function of the product, and its name, from `module:name`."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def constant(value: Any) -> Replace:
    return lambda _: lambda *_arguments, **_more: value


def new_rows_are_covered(real: Any) -> Any:
    from lance_spark.commit.conflicts.identity import fragment_identity
    from lance_spark.commit.conflicts.verdicts import Covered

    def look(self: Any, version: Any, fragments: Any, lineage: Any, *ids: Any) -> Any:
        coverage = real(self, version, fragments, lineage, *ids)
        new = {
            fragment.id: Covered(identity=fragment_identity(fragment, *ids), done=False)
            for fragment in fragments
            if fragment.id in coverage.new
        }
        return dataclasses.replace(coverage, covered={**coverage.covered, **new}, new=frozenset())

    return look


def nothing_is_foreign(real: Any) -> Any:
    def of(self: Any, fragment: Any) -> Any:
        origins = real(self, fragment)
        traced = np.concatenate(
            [origins.unknown, *(origin.mapping.new for origin in origins.origins)]
        )
        deleted = self._head.deleted(fragment.id)
        rows = np.arange(fragment.physical_rows, dtype=np.int64)
        live = rows if deleted is None else rows[~deleted]
        return dataclasses.replace(origins, unknown=np.setdiff1d(live, traced))

    return of


def nothing_is_unknown(real: Any) -> Any:
    def of(self: Any, fragment: Any) -> Any:
        return dataclasses.replace(real(self, fragment), unknown=np.empty(0, dtype=np.int64))

    return of


def renamed_is_lost(real: Any) -> Any:
    from lance_spark.commit.conflicts.verdicts import Judgement, Verdict

    def judge(then: Any, head: Any, changes: Any, **more: Any) -> Any:
        if any(field.id == then.id and field.name != then.name for field in head):
            return Judgement(verdict=Verdict.IMPOSSIBLE, reason="another name")
        return real(then, head, changes, **more)

    return judge


def restored_is_lost(real: Any) -> Any:
    from lance_spark.commit.conflicts.verdicts import Judgement, Verdict

    def judge(then: Any, head: Any, changes: Any, **more: Any) -> Any:
        changes = list(changes)
        if any(change.operation == "Restore" for change in changes):
            return Judgement(verdict=Verdict.IMPOSSIBLE, reason="a restore")
        return real(then, head, changes, **more)

    return judge


def any_column_will_do(_real: Any) -> Any:
    from lance_spark.commit.conflicts.verdicts import VALID

    return lambda *_arguments, **_more: VALID


def deletions_are_forgotten(real: Any) -> Any:
    """Commits all fragments as they were before the deletions, like a `Merge` that is sent twice."""

    def attempt(base: Any, operation: Any, **more: Any) -> Any:
        import lance

        landed = real(base, operation, **more)
        if hasattr(landed, "dataset"):
            head = landed.dataset
            old = [
                dataclasses.replace(fragment.metadata, deletion_file=None)
                for fragment in head.get_fragments()
            ]
            merge = lance.LanceOperation.Merge(old, head.schema)
            landed = dataclasses.replace(
                landed, dataset=lance.LanceDataset.commit(head, merge, read_version=head.version)
            )
        return landed

    return attempt


def gone_is_an_error(real: Any) -> Any:
    from lance_spark.errors import CommitImpossibleError

    def plan(self: Any, head: Any) -> Any:
        plan_result = real(self, head)
        if plan_result.gone:
            raise CommitImpossibleError("fragments are gone")
        return plan_result

    return plan


def nothing_slips_in(real: Any) -> Any:
    return lambda self, head: (
        real(self, head) if self.landed is None else dataclasses.replace(self.landed, parts={})
    )


def no_row_id_is_known(_real: Any) -> Any:
    return lambda _dataset, ids: (np.zeros(len(ids), np.uint64), np.zeros(len(ids), np.bool_))


def inputs_look_the_same(real: Any) -> Any:
    return lambda then, current, *more, **keywords: real(
        then,
        None if current is None else dataclasses.replace(current, inputs=then.inputs),
        *more,
        **keywords,
    )


def inputs_are_right(_real: Any) -> Any:
    return lambda self, *_arguments, **_more: self.done


def targets_look_the_same(real: Any) -> Any:
    return lambda then, current, *more, **keywords: real(
        then,
        None if current is None else dataclasses.replace(current, targets=then.targets),
        *more,
        **keywords,
    )


def is_a_conflict(*operations: str) -> Replace:
    """Gives up after a harmless change by another writer."""
    from lance_spark.errors import CommitImpossibleError

    def wrong(real: Any) -> Any:
        def plan(self: Any, head: Any) -> Any:
            conflicts = [
                change.operation for change in self.changes if change.operation in operations
            ]
            if conflicts:
                raise CommitImpossibleError(f"{conflicts[0]} came first")
            return real(self, head)

        return plan

    return wrong


def snapshot_must_be_there(real: Any) -> Any:
    from lance_spark.errors import CommitImpossibleError

    def look(self: Any, dataset: Any, after: int, *arguments: Any) -> None:
        if all(ref["version"] != after for ref in dataset.version_refs()):
            raise CommitImpossibleError("the snapshot is gone")
        real(self, dataset, after, *arguments)

    return look


def deleted_rows_count(_real: Any) -> Any:
    return lambda self, old, version: np.arange(old.physical_rows, dtype=np.int64)


def found_nothing(following: bool) -> Replace:
    """Finds no value computed before: neither of earlier rounds of the same job, nor of other jobs."""

    def wrong(real: Any) -> Any:
        def find(self: Any, fragment: Any, rows: Any, *more: Any) -> Any:
            if (self._spec.round > 0) == following:
                return real(self, fragment, RowSet.empty())
            return real(self, fragment, rows, *more)

        return find

    return wrong


def theirs_stay(real: Any) -> Any:
    return lambda self, rows: (
        real(self, rows) & (rows.without_value() if rows.prior.attempted else rows.live)
    )


def all_lack_a_value(_real: Any) -> Any:
    return lambda self: self.live


def nothing_is_stale(_real: Any) -> Any:
    return lambda *_: RowSet.empty()
