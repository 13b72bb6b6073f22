"""Wrong functions, by which mutants replace functions of the product: each takes the right one, and returns another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from lance_spark.rows.row_set import RowSet

Replace = Callable[[Any], Any]
"""Makes the wrong function of the right one."""


def constant(value: Any) -> Replace:
    return lambda _: lambda *_arguments, **_more: value


def new_rows_are_covered(real: Any) -> Any:
    from lance_spark.commit.conflicts.coverage import Covered
    from lance_spark.commit.conflicts.identity import fragment_identity

    def look(self: Any, version: Any, fragments: Any, lineage: Any, *ids: Any) -> Any:
        found = real(self, version, fragments, lineage, *ids)
        new = {
            fragment.id: Covered(identity=fragment_identity(fragment, *ids), done=False)
            for fragment in fragments
            if fragment.id in found.new
        }
        return dataclasses.replace(found, covered={**found.covered, **new}, new=frozenset())

    return look


def nothing_is_foreign(real: Any) -> Any:
    def of(self: Any, fragment: Any) -> Any:
        found = real(self, fragment)
        known = np.concatenate([found.unknown, *(origin.moved.new for origin in found.origins)])
        return dataclasses.replace(found, unknown=np.setdiff1d(self._live(fragment), known))

    return of


def nothing_is_unknown(real: Any) -> Any:
    def of(self: Any, fragment: Any) -> Any:
        return dataclasses.replace(real(self, fragment), unknown=np.empty(0, dtype=np.int64))

    return of


def renamed_is_lost(real: Any) -> Any:
    from lance_spark.commit.conflicts.verdicts import Judgement, Verdict

    def judge(then: Any, head: Any, changes: Any, **more: Any) -> Any:
        if any(now.id == then.id and now.name != then.name for now in head):
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
    """Commits all fragments as they were before anything was deleted, as a Merge that is sent again does."""

    def attempt(base: Any, operation: Any, **more: Any) -> Any:
        import lance

        landed = real(base, operation, **more)
        if hasattr(landed, "dataset"):
            head = landed.dataset
            old = [dataclasses.replace(fragment.metadata, deletion_file=None) for fragment in head.get_fragments()]
            merge = lance.LanceOperation.Merge(old, head.schema)
            landed = dataclasses.replace(
                landed, dataset=lance.LanceDataset.commit(head, merge, read_version=head.version)
            )
        return landed

    return attempt


def gone_is_an_error(real: Any) -> Any:
    from lance_spark.errors import CommitImpossibleError

    def plan(self: Any, head: Any) -> Any:
        made = real(self, head)
        if made.gone:
            raise CommitImpossibleError("fragments are gone")
        return made

    return plan


def nothing_slips_in(real: Any) -> Any:
    return lambda self, head: real(self, head) if self.landed is None else dataclasses.replace(self.landed, parts={})


def no_row_id_is_known(_real: Any) -> Any:
    return lambda _dataset, ids: (np.zeros(len(ids), np.uint64), np.zeros(len(ids), np.bool_))


def inputs_look_the_same(real: Any) -> Any:
    return lambda then, now, *more, **named: real(
        then, None if now is None else dataclasses.replace(now, inputs=then.inputs), *more, **named
    )


def inputs_are_right(_real: Any) -> Any:
    return lambda self, *_arguments, **_more: self.done


def targets_look_the_same(real: Any) -> Any:
    return lambda then, now, *more, **named: real(
        then, None if now is None else dataclasses.replace(now, targets=then.targets), *more, **named
    )


def is_a_conflict(*operations: str) -> Replace:
    """Gives up where others did something harmless."""
    from lance_spark.errors import CommitImpossibleError

    def wrong(real: Any) -> Any:
        def plan(self: Any, head: Any) -> Any:
            found = [change.operation for change in self.changes if change.operation in operations]
            if found:
                raise CommitImpossibleError(f"{found[0]} came first")
            return real(self, head)

        return plan

    return wrong


def snapshot_must_be_there(real: Any) -> Any:
    from lance_spark.errors import CommitImpossibleError

    def look(self: Any, dataset: Any, after: int, *known: Any) -> None:
        if all(kept["version"] != after for kept in dataset.version_refs()):
            raise CommitImpossibleError("the snapshot is gone")
        real(self, dataset, after, *known)

    return look


def deleted_rows_count(_real: Any) -> Any:
    return lambda self, old, version: np.arange(old.physical_rows, dtype=np.int64)


def found_nothing(following: bool) -> Replace:
    """Finds no value that was computed before: of the same job's earlier rounds, or of other jobs."""

    def wrong(real: Any) -> Any:
        def find(self: Any, fragment: Any, wanted: Any, *more: Any) -> Any:
            if (self._spec.follow_up is not None) == following:
                return real(self, fragment, RowSet.empty())
            return real(self, fragment, wanted, *more)

        return find

    return wrong


def theirs_stay(real: Any) -> Any:
    return lambda self, own, done: real(self, own, done) & self.without_value()


def all_lack_a_value(_real: Any) -> Any:
    return lambda self: self.live


def nothing_is_stale(_real: Any) -> Any:
    return lambda *_: RowSet.empty()
