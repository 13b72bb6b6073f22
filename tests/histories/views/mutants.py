"""Refreshes that are broken on purpose, with which the checker of views proves that it can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from lance_spark.rows.row_set import RowSet
from tests.histories.administration import Restore
from tests.histories.broken import Replace, constant
from tests.histories.operations import Append, Delete, RewriteInput, Update, Upsert
from tests.histories.views.model import Act, Go, History, Kill, Start, Step

_KEYS = st.lists(st.integers(0, 14), min_size=4, max_size=6, unique=True).map(lambda keys: tuple(sorted(keys)))
_NEW = Append((100, 102, 103, 105))

Steps = st.SearchStrategy[list[Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A way to be wrong.

    Attributes:
        patches: What is replaced, as `module:name`.
        steps: What happens in histories of which one shows it, after a first refresh.
    """

    patches: dict[str, Replace]
    steps: Steps


def _one(*steps: Any) -> Steps:
    return st.tuples(*(one if isinstance(one, st.SearchStrategy) else st.just(one) for one in steps)).map(list)


def _on(table: str, operation: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return operation.map(lambda one: Act(table, one))


_INPUT = _on("t", st.builds(Update, _KEYS, st.just("a")))
_OTHER_INPUT = _on("t", st.builds(Update, _KEYS, st.just("b")))
_IN_PLACE = _on("t", st.builds(RewriteInput, _KEYS))
_DELETE = _on("t", st.builds(Delete, _KEYS))
_APPEND = Act("t", _NEW)

_PLACEMENT = "lance_spark.views.placement"
_DIFFERENCE = "lance_spark.rebase.difference"
_REFRESH = "lance_spark.views.refresh"
_COMMIT = "lance_spark.commit.rows.replace_commit"
_STATE = "lance_spark.views.state"


def _bits(change: Any) -> Replace:
    """Says that other columns of UDFs are to be computed again than those whose inputs changed."""

    def wrong(real: Any) -> Any:
        def changes(source: Any, fragment_id: int, since: Any) -> Any:
            ids, found = real(source, fragment_id, since)
            return ids, np.where(found == -1, found, change)

        return changes

    return wrong


def _old_rows_stay(_real: Any) -> Any:
    return lambda fragment, offsets, answer: None


def _unselected_rows_stay(_real: Any) -> Any:
    return lambda self, fragment_id, rows: rows


def _nothing_changed(_real: Any) -> Any:
    return lambda *_: RowSet.empty()


def _all_changed(_real: Any) -> Any:
    return lambda _origins, _fragment, _found, rows: rows


def _nothing_is_gone(_real: Any) -> Any:
    return lambda self, fragment_id: iter(())


def _nothing_is_affected(real: Any) -> Any:
    def affected(*arguments: Any) -> Any:
        found = real(*arguments)
        known = {number for number, _ in found.then}
        return dataclasses.replace(found, now=tuple(one for one in found.now if one[0] not in known))

    return affected


def _revived_rows_are_not_told(_real: Any) -> Any:
    return lambda self, origins, fragment: origins.of(fragment)


def _restores_are_not_followed(_real: Any) -> Any:
    return lambda _operation, version: version - 1


def _all_rows_are_filled(real: Any) -> Any:
    return functools.partial(real, where="1=1")


def _always_noted(_real: Any) -> Any:
    """Notes what was committed whatever came in between."""
    from lance_spark.commit.schema_change import change_schema, set_config

    def note(self: Any, shown: Any) -> None:
        text = dataclasses.replace(shown, at=self._ref.open_latest().version).to_json()
        change_schema(self._ref, lambda _: set_config({"lance-spark.view.refreshed": text}))

    return note


MUTANTS: dict[str, Mutant] = {
    "old rows stay": Mutant(
        patches={f"{_PLACEMENT}:_delete": _old_rows_stay},
        steps=_one(st.one_of(_INPUT, _OTHER_INPUT, _DELETE)),
    ),
    "changed rows are not told": Mutant(
        patches={f"{_DIFFERENCE}:_changed": _nothing_changed}, steps=_one(st.one_of(_INPUT, _OTHER_INPUT, _IN_PLACE))
    ),
    "moved rows count as changed": Mutant(
        patches={f"{_DIFFERENCE}:_changed": _all_changed},
        steps=_one(st.one_of(_on("t", st.builds(Update, _KEYS)), _on("t", st.builds(Upsert, _KEYS)))),
    ),
    "fragments that are still there are not looked at": Mutant(
        patches={f"{_REFRESH}:affected": _nothing_is_affected}, steps=_one(_IN_PLACE)
    ),
    "values are taken along whatever the input is": Mutant(
        patches={f"{_PLACEMENT}:_changes": _bits(0)}, steps=_one(st.one_of(_INPUT, _IN_PLACE))
    ),
    "values are never taken along": Mutant(patches={f"{_PLACEMENT}:_changes": _bits(1)}, steps=_one(_OTHER_INPUT)),
    "rows that are gone stay": Mutant(
        patches={f"{_DIFFERENCE}:Difference.gone": _nothing_is_gone}, steps=_one(_DELETE)
    ),
    "rows that are not selected any more stay": Mutant(
        patches={f"{_PLACEMENT}:SourceRows.matching": _unselected_rows_stay},
        steps=_one(_OTHER_INPUT, Start("one"), _OTHER_INPUT),
    ),
    "rows that a restore brought back are not told": Mutant(
        patches={f"{_DIFFERENCE}:Difference._find": _revived_rows_are_not_told},
        steps=_one(_DELETE, Start("one"), Act("t", Restore(1))),
    ),
    "all values are computed again": Mutant(
        patches={f"{_REFRESH}:BackfillRequest": _all_rows_are_filled}, steps=_one(_APPEND)
    ),
    "a refresh commits beside another one": Mutant(
        patches={f"{_COMMIT}:_refuse_other": constant(None), f"{_COMMIT}:_is_preceded": constant(False)},
        steps=_one(_APPEND, Start("one", "commit"), Start("two"), Go("one")),
    ),
    "a restore beside a refresh is not seen": Mutant(
        patches={f"{_COMMIT}:_is_preceded": constant(False)},
        steps=_one(
            _APPEND, Start("one"), _on("t", st.just(Append((108, 110)))), Start("one", "look"), Act("v", Restore(3))
        ),
    ),
    "what a dead refresh committed is not known": Mutant(
        patches={f"{_STATE}:STAMP_KEY": lambda _: "nothing"},
        steps=_one(_APPEND, Start("one", "landed"), Kill("one")),
    ),
    "restores of the view are not followed": Mutant(
        patches={f"{_STATE}:_before": _restores_are_not_followed},
        steps=_one(_APPEND, Start("one", "landed"), Kill("one"), Act("v", Restore(1))),
    ),
    "a refresh notes what a restore has taken back": Mutant(
        patches={f"{_REFRESH}:RefreshJob._note": _always_noted},
        steps=_one(_APPEND, Start("one", "note"), Act("v", Restore(1)), Go("one")),
    ),
    "two refreshes cannot note at once": Mutant(
        patches={"lance_spark.commit.schema_change:is_conflict": constant(False)},
        steps=_one(_APPEND, Start("one", "noting"), _DELETE, Start("two"), Go("one")),
    ),
    "a refresh goes back behind another one": Mutant(
        patches={"lance_spark.views.start:Start.shows_later": lambda _: property(lambda self: False)},
        steps=_one(_APPEND, Start("one", "begin"), Act("t", Append((111, 112))), Start("two"), Go("one")),
    ),
    "files are left": Mutant(patches={f"{_REFRESH}:finish": constant(None)}, steps=_one(_INPUT, _DELETE)),
}


@contextlib.contextmanager
def applied(name: str) -> Iterator[None]:
    """Makes this process a mutant for a while."""
    with contextlib.ExitStack() as stack:
        for place, replace in MUTANTS[name].patches.items():
            module, _, path = place.partition(":")
            *owners, attribute = path.split(".")
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            stack.enter_context(patch.object(owner, attribute, replace(getattr(owner, attribute))))
        yield


@st.composite
def histories_for(draw: st.DrawFn, name: str) -> History:
    """Draws a history in which others do what a mutant is wrong about."""
    assume(draw(st.integers(0, 1000)))
    return History((5, 5, 5), (Start("one"), *draw(MUTANTS[name].steps)), chain=draw(st.booleans()))
