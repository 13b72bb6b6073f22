"""Draws histories of views."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from tests.histories.administration import (
    AddColumn,
    CleanUp,
    Configure,
    DropColumn,
    Index,
    Rename,
    Restore,
)
from tests.histories.operations import (
    Append,
    Compact,
    Delete,
    DeleteFragment,
    InsertOnly,
    Operation,
    RewriteInput,
    RewriteTarget,
    Update,
    Upsert,
)
from tests.histories.views.model import (
    ActOn,
    KillRefresh,
    ResumeRefresh,
    StartRefresh,
    Step,
    ViewHistory,
)
from tests.histories.views.operations import AddOwn, FillOwn, Spoil, ViewIndex, ViewRename
from tests.histories.views.refreshes import FAULTS, POINTS

_KEYS = st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True).map(
    lambda keys: tuple(sorted(keys))
)
_NEW_KEYS = st.lists(st.integers(100, 130), min_size=1, max_size=4, unique=True).map(
    lambda keys: tuple(sorted(keys))
)
_COMPACT = st.builds(Compact, st.sampled_from([12, 1_000_000]), st.booleans())
_MAYBE_KEYS = st.one_of(st.just(()), _KEYS)
_MAYBE_NEW = st.one_of(st.just(()), _NEW_KEYS)

_Weighted = dict[str, tuple[int, st.SearchStrategy[Operation]]]

_OF_SOURCE: _Weighted = {
    "append": (5, st.builds(Append, _NEW_KEYS)),
    "insert": (2, st.builds(InsertOnly, _NEW_KEYS)),
    "delete": (4, st.builds(Delete, _KEYS, ours=st.booleans())),
    "delete fragment": (2, st.builds(DeleteFragment, _KEYS, ours=st.booleans())),
    "update": (7, st.builds(Update, _KEYS, st.sampled_from(["a", "a", "b", "b", "other"]), ours=st.booleans())),
    "upsert": (4, st.builds(Upsert, _KEYS, new=_MAYBE_NEW, changed=_MAYBE_KEYS, ours=st.booleans())),
    "rewrite input": (
        6,
        st.builds(
            RewriteInput,
            _KEYS,
            st.sampled_from(["a", "a", "b"]),
            st.sampled_from(["next", "next", "first", "same"]),
            st.booleans(),
        ),
    ),
    "rewrite unused": (2, st.builds(RewriteTarget, _KEYS, st.sampled_from(["v", "w"]), st.booleans())),
    "compact": (6, _COMPACT),
    "add column": (1, st.builds(AddColumn, st.sampled_from(["e1", "e2"]), st.booleans())),
    "drop column": (1, st.builds(DropColumn, st.sampled_from(["other", "e1", "e2"]))),
    "rename": (1, st.builds(Rename, st.sampled_from(["a", "other", "v"]))),
    "index": (1, st.builds(Index, st.sampled_from(["a", "v"]), st.sampled_from(["create", "optimize"]))),
    "config": (1, st.just(Configure())),
    "restore": (5, st.builds(Restore, st.integers(1, 5))),
    "clean up": (2, st.builds(CleanUp, st.booleans())),
}  # fmt: skip

_OF_VIEW: _Weighted = {
    "compact": (5, _COMPACT),
    "delete": (5, st.builds(Delete, _KEYS, ours=st.booleans())),
    "delete fragment": (2, st.builds(DeleteFragment, _KEYS, ours=st.booleans())),
    "restore": (5, st.builds(Restore, st.integers(1, 6))),
    "index": (
        2,
        st.builds(
            ViewIndex,
            st.sampled_from(["id", "e", "u"]),
            st.sampled_from(["create", "create", "drop", "optimize"]),
        ),
    ),
    "own column": (3, st.just(AddOwn())),
    "fill own column": (4, st.just(FillOwn())),
    "add column": (1, st.builds(AddColumn, st.sampled_from(["e1"]), st.booleans())),
    "rename": (1, st.builds(ViewRename, st.sampled_from(["e", "u"]))),
    "config": (1, st.just(Configure())),
    "clean up": (2, st.builds(CleanUp, st.booleans())),
}


def _one_of(weighted: _Weighted) -> st.SearchStrategy[Operation]:
    names = [name for name, (weight, _) in weighted.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda name: weighted[name][1])


_ACT: st.SearchStrategy[Step] = st.sampled_from(["t"] * 6 + ["v"] * 3 + ["w"]).flatmap(
    lambda table: st.builds(
        ActOn, st.just(table), _one_of(_OF_SOURCE if table == "t" else _OF_VIEW)
    )
)
_UNTIL = st.sampled_from([*POINTS, "commit", "landed", "fill landed", "call 3", "task 2", "task 3"])
_FAULT = st.sampled_from([None] * 12 + [*FAULTS])
_VIEW = st.sampled_from(["v", "v", "v", "w"])
_NAME = st.sampled_from(["one", "two"])


@st.composite
def starts(draw: st.DrawFn) -> StartRefresh:
    """Draws the start of a refresh, which runs to its end or to a point."""
    until = draw(st.one_of(st.just("end"), _UNTIL, _UNTIL))
    back = draw(st.sampled_from([None] * 5 + [0, 1, 2, 4]))
    return StartRefresh(draw(_NAME), until, draw(_VIEW), back, draw(_FAULT))


_STEP: st.SearchStrategy[Step] = st.sampled_from(
    ["act"] * 10 + ["go"] * 4 + ["start"] * 5 + ["kill"]
).flatmap(
    lambda what: {
        "act": _ACT,
        "go": st.builds(ResumeRefresh, _NAME, st.one_of(_UNTIL, st.just("end")), _FAULT),
        "start": starts(),
        "kill": st.builds(KillRefresh, _NAME),
    }[what]
)


@st.composite
def histories(draw: st.DrawFn) -> ViewHistory:
    """Draws a history, but never the simplest, which Hypothesis draws first."""
    assume(draw(st.integers(0, 1000)))
    fragments = draw(st.lists(st.integers(5, 8), min_size=2, max_size=3).map(tuple))
    first = [StartRefresh("one")] if draw(st.integers(0, 3)) else []
    steps: list[Step] = [
        *first,
        draw(_ACT),
        draw(starts()),
        *draw(st.lists(_STEP, min_size=4, max_size=14)),
    ]
    if draw(st.integers(0, 11)) == 11:
        how = draw(st.sampled_from(["drop", "cast", "reuse", "overwrite"]))
        steps.insert(
            draw(st.integers(2, len(steps))),
            ActOn("t", Spoil(how, draw(st.sampled_from(["a", "b"])))),
        )
    return ViewHistory(
        fragments, tuple(steps), chain=draw(st.booleans()), rows=draw(st.sampled_from([1000, 6]))
    )
