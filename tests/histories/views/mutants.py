"""Refreshes with a deliberate defect. With mutants the tests prove the power of the checker of views."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from lance_spark.commit.attempt import Lost
from lance_spark.errors import CommitError
from lance_spark.rows.row_set import RowSet
from tests.histories.administration import Restore
from tests.histories.broken import Replace, constant, owner_of
from tests.histories.operations import Append, Delete, RewriteInput, Update, Upsert
from tests.histories.views.model import (
    ActOn,
    KillRefresh,
    ResumeRefresh,
    StartRefresh,
    Step,
    ViewHistory,
)

_KEYS = st.lists(st.integers(0, 14), min_size=4, max_size=6, unique=True).map(
    lambda keys: tuple(sorted(keys))
)
_NEW = Append((100, 102, 103, 105))

Steps = st.SearchStrategy[list[Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMutant:
    """A defect.

    Attributes:
        patches: Replaced functions, as `module:name`.
        steps: Steps after a first refresh, of histories that can show the defect.
    """

    patches: dict[str, Replace]
    steps: Steps


def _in_order(*steps: Any) -> Steps:
    return st.tuples(
        *(step if isinstance(step, st.SearchStrategy) else st.just(step) for step in steps)
    ).map(list)


def _on(table: str, operation: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return operation.map(lambda change: ActOn(table, change))


_INPUT = _on("t", st.builds(Update, _KEYS, st.just("a")))
_OTHER_INPUT = _on("t", st.builds(Update, _KEYS, st.just("b")))
_IN_PLACE = _on("t", st.builds(RewriteInput, _KEYS))
_DELETE = _on("t", st.builds(Delete, _KEYS))
_APPEND = ActOn("t", _NEW)

_PLACEMENT = "lance_spark.views.placement"
_DIFFERENCE = "lance_spark.rebase.source_changes"
_REFRESH = "lance_spark.views.refresh"
_COMMIT = "lance_spark.commit.rows.replace_commit"
_STATE = "lance_spark.views.state"


def _bits(change: Any) -> Replace:
    """Marks the wrong columns of UDFs for recomputation."""

    def wrong(real: Any) -> Any:
        def changes(source: Any, fragment_id: int, since: Any) -> Any:
            ids, bits = real(source, fragment_id, since)
            return ids, np.where(bits == -1, bits, change)

        return changes

    return wrong


def _old_rows_stay(_real: Any) -> Any:
    return lambda *_arguments: None


def _unselected_rows_stay(_real: Any) -> Any:
    return lambda self, fragment_id, rows: rows


def _nothing_changed(_real: Any) -> Any:
    return lambda *_: RowSet.empty()


def _all_changed(_real: Any) -> Any:
    return lambda _self, _origins, _fragment, _bits, rows: rows


def _nothing_is_gone(_real: Any) -> Any:
    return lambda self, fragment_id: iter(())


def _nothing_is_affected(real: Any) -> Any:
    def affected(*arguments: Any) -> Any:
        changes = real(*arguments)
        old_numbers = {number for number, _ in changes.then}
        return dataclasses.replace(
            changes, now=tuple(row for row in changes.now if row[0] not in old_numbers)
        )

    return affected


def _revived_rows_are_not_told(_real: Any) -> Any:
    return lambda self, origins, fragment: origins.of(fragment)


def _restores_are_not_followed(_real: Any) -> Any:
    return lambda event: event.version - 1


def _all_rows_are_filled(real: Any) -> Any:
    return functools.partial(real, where="1=1")


def _lost_commits_are_errors(real: Any) -> Any:
    def attempt(head: Any, *arguments: Any, **more: Any) -> Any:
        outcome = real(head, *arguments, **more)
        if isinstance(outcome, Lost):
            raise CommitError("The commit lost to another commit.", uri=head.uri)
        return outcome

    return attempt


def _always_noted(_real: Any) -> Any:
    """Records the commit regardless of concurrent commits."""
    from lance_spark.commit.schema_change import change_schema, set_config

    def note(self: Any, refreshed: Any) -> None:
        text = dataclasses.replace(refreshed, at=self._ref.open_latest().version).to_json()
        change_schema(self._ref, lambda _: set_config({"lance-spark.view.refreshed": text}))

    return note


MUTANTS: dict[str, ViewMutant] = {
    "old rows stay": ViewMutant(
        patches={f"{_PLACEMENT}:_delete": _old_rows_stay},
        steps=_in_order(st.one_of(_INPUT, _OTHER_INPUT, _DELETE)),
    ),
    "changed rows are not told": ViewMutant(
        patches={f"{_DIFFERENCE}:SourceChanges._changed": _nothing_changed},
        steps=_in_order(st.one_of(_INPUT, _OTHER_INPUT, _IN_PLACE)),
    ),
    "moved rows count as changed": ViewMutant(
        patches={f"{_DIFFERENCE}:SourceChanges._changed": _all_changed},
        steps=_in_order(
            st.one_of(_on("t", st.builds(Update, _KEYS)), _on("t", st.builds(Upsert, _KEYS)))
        ),
    ),
    "fragments that are still there are not looked at": ViewMutant(
        patches={f"{_REFRESH}:affected": _nothing_is_affected}, steps=_in_order(_IN_PLACE)
    ),
    "values are taken along whatever the input is": ViewMutant(
        patches={f"{_PLACEMENT}:changes_of": _bits(0)},
        steps=_in_order(st.one_of(_INPUT, _IN_PLACE)),
    ),
    "values are never taken along": ViewMutant(
        patches={f"{_PLACEMENT}:changes_of": _bits(1)}, steps=_in_order(_OTHER_INPUT)
    ),
    "rows that are gone stay": ViewMutant(
        patches={f"{_DIFFERENCE}:SourceChanges.deleted_ids": _nothing_is_gone},
        steps=_in_order(_DELETE),
    ),
    "rows that are not selected any more stay": ViewMutant(
        patches={f"{_PLACEMENT}:SourceRows.matching": _unselected_rows_stay},
        steps=_in_order(_OTHER_INPUT, StartRefresh("one"), _OTHER_INPUT),
    ),
    "rows that a restore brought back are not told": ViewMutant(
        patches={f"{_DIFFERENCE}:SourceChanges._find": _revived_rows_are_not_told},
        steps=_in_order(_DELETE, StartRefresh("one"), ActOn("t", Restore(1))),
    ),
    "all values are computed again": ViewMutant(
        patches={f"{_REFRESH}:BackfillRequest": _all_rows_are_filled}, steps=_in_order(_APPEND)
    ),
    "a refresh commits beside another one": ViewMutant(
        patches={
            f"{_COMMIT}:_refuse_other": constant(None),
            f"{_COMMIT}:_is_preceded": constant(False),
        },
        steps=_in_order(
            _APPEND, StartRefresh("one", "commit"), StartRefresh("two"), ResumeRefresh("one")
        ),
    ),
    "a restore beside a refresh is not seen": ViewMutant(
        patches={f"{_COMMIT}:_is_preceded": constant(False)},
        steps=_in_order(
            _APPEND,
            StartRefresh("one"),
            _on("t", st.just(Append((108, 110)))),
            StartRefresh("one", "look"),
            ActOn("v", Restore(3)),
        ),
    ),
    "what a dead refresh committed is not known": ViewMutant(
        patches={f"{_STATE}:STAMP_KEY": lambda _: "nothing"},
        steps=_in_order(_APPEND, StartRefresh("one", "landed"), KillRefresh("one")),
    ),
    "restores of the view are not followed": ViewMutant(
        patches={
            "lance_spark.commit.conflicts.history:version_before": _restores_are_not_followed,
            f"{_STATE}:version_before": _restores_are_not_followed,
        },
        steps=_in_order(
            _APPEND, StartRefresh("one", "landed"), KillRefresh("one"), ActOn("v", Restore(1))
        ),
    ),
    "a refresh notes what a restore has taken back": ViewMutant(
        patches={f"{_REFRESH}:RefreshJob._note": _always_noted},
        steps=_in_order(
            _APPEND, StartRefresh("one", "note"), ActOn("v", Restore(1)), ResumeRefresh("one")
        ),
    ),
    "two refreshes cannot note at once": ViewMutant(
        patches={"lance_spark.commit.schema_change:attempt_commit": _lost_commits_are_errors},
        steps=_in_order(
            _APPEND,
            StartRefresh("one", "noting"),
            _DELETE,
            StartRefresh("two"),
            ResumeRefresh("one"),
        ),
    ),
    "a refresh goes back behind another one": ViewMutant(
        patches={
            "lance_spark.views.refresh_base:RefreshBase.shows_later": lambda _: property(
                lambda self: False
            )
        },
        steps=_in_order(
            _APPEND,
            StartRefresh("one", "begin"),
            ActOn("t", Append((111, 112))),
            StartRefresh("two"),
            ResumeRefresh("one"),
        ),
    ),
    "files are left": ViewMutant(
        patches={f"{_REFRESH}:finish": constant(None)}, steps=_in_order(_INPUT, _DELETE)
    ),
}


@contextlib.contextmanager
def applied(name: str) -> Iterator[None]:
    """Makes this process a mutant for a while."""
    with contextlib.ExitStack() as stack:
        for place, replace in MUTANTS[name].patches.items():
            owner, attribute = owner_of(place)
            stack.enter_context(patch.object(owner, attribute, replace(getattr(owner, attribute))))
        yield


@st.composite
def histories_for(draw: st.DrawFn, name: str) -> ViewHistory:
    """Draws a history with the concurrent change for which a mutant is wrong."""
    assume(draw(st.integers(0, 1000)))
    return ViewHistory(
        (5, 5, 5), (StartRefresh("one"), *draw(MUTANTS[name].steps)), chain=draw(st.booleans())
    )
