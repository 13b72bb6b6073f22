"""Draws histories."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from tests.histories.administration import (
    RUINS,
    AddColumn,
    CleanUp,
    Configure,
    DropColumn,
    Index,
    Rename,
    Restore,
    Ruin,
)
from tests.histories.model import (
    Act,
    BackfillHistory,
    KillBackfill,
    ResumeBackfill,
    StartBackfill,
    Step,
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

_KEYS = st.lists(st.integers(0, 24), min_size=1, max_size=5, unique=True).map(
    lambda keys: tuple(sorted(keys))
)
_NEW_KEYS = st.lists(st.integers(100, 130), min_size=1, max_size=3, unique=True).map(
    lambda keys: tuple(sorted(keys))
)
_EXTRAS = st.sampled_from(["e1", "e2"])

_OPERATIONS: dict[str, tuple[int, st.SearchStrategy[Operation]]] = {
    "append": (3, st.builds(Append, _NEW_KEYS, st.booleans())),
    "insert": (3, st.builds(InsertOnly, _NEW_KEYS)),
    "delete": (3, st.builds(Delete, _KEYS, ours=st.booleans())),
    "delete fragment": (2, st.builds(DeleteFragment, _KEYS, ours=st.booleans())),
    "update": (
        6,
        st.builds(Update, _KEYS, st.sampled_from(["a", "a", "b", "other"]), ours=st.booleans()),
    ),
    "upsert": (
        4,
        st.builds(
            Upsert,
            _KEYS,
            new=st.one_of(st.just(()), _NEW_KEYS),
            changed=st.one_of(st.just(()), _KEYS),
            value=st.sampled_from(["copied", "given", "null"]),
            ours=st.booleans(),
        ),
    ),
    "rewrite input": (
        5,
        st.builds(
            RewriteInput,
            _KEYS,
            st.sampled_from(["a", "a", "b"]),
            st.sampled_from(["next", "next", "next", "first", "same"]),
            st.booleans(),
        ),
    ),
    "rewrite target": (
        4,
        st.builds(RewriteTarget, _KEYS, st.sampled_from(["v", "v", "w"]), st.booleans()),
    ),
    "compact": (
        7,
        st.builds(
            Compact,
            st.sampled_from([12, 1_000_000]),
            st.booleans(),
            st.sampled_from([False, False, True]),
        ).map(lambda compaction: replace(compaction, ours=compaction.all)),
    ),
    "add column": (3, st.builds(AddColumn, _EXTRAS, st.booleans())),
    "drop column": (2, st.builds(DropColumn, st.sampled_from(["other", "e1", "e2"]))),
    "rename": (4, st.builds(Rename, st.sampled_from(["a", "b", "v", "v", "w", "other", "e1"]))),
    "index": (
        4,
        st.builds(
            Index,
            st.sampled_from(["a", "v", "v", "w"]),
            st.sampled_from(["create", "create", "drop", "optimize"]),
        ),
    ),
    "config": (2, st.just(Configure())),
    "restore": (2, st.builds(Restore, st.integers(1, 4))),
    "clean up": (3, st.builds(CleanUp, st.booleans())),
}
_WEIGHTED = [kind for kind, (weight, _) in _OPERATIONS.items() for _ in range(weight)]

_OPERATION: st.SearchStrategy[Operation] = st.sampled_from(_WEIGHTED).flatmap(
    lambda kind: _OPERATIONS[kind][1]
)
_CALL = st.integers(0, 24).map(lambda key: f"call {key}")
_UNTIL = st.one_of(_CALL, st.just("commit"), st.just("commit"), st.just("landed"))


@st.composite
def starts(draw: st.DrawFn, run: str) -> StartBackfill:
    """Draws the start of a backfill, which waits at a gate."""
    door = draw(st.sampled_from(["job"] * 11 + ["write"] * 6 + ["driver"] * 2))
    column = draw(st.sampled_from(["v", "v", "v", "w"]))
    where = draw(st.sampled_from([None, None, None, "some", "all"]))
    if door == "write":
        column = draw(st.sampled_from([column, column, column, "d"]))
        until = draw(st.sampled_from(["written", "written", "commit", "commit", "landed"]))
        return StartBackfill(
            run,
            door,
            column,
            where,
            until,
            on_stale=draw(st.sampled_from([None, None, None, "error"])),
        )
    return StartBackfill(
        run,
        door,
        column,
        where,
        draw(_UNTIL),
        draw(st.sampled_from([None, 1, 2])),
        draw(st.sampled_from([100, 4])),
        draw(st.sampled_from([None, None, "null"])),
    )


_STEP: st.SearchStrategy[Step] = st.sampled_from(
    ["act"] * 11 + ["go"] * 4 + ["start"] * 3 + ["kill"]
).flatmap(
    lambda what: {
        "act": st.builds(Act, _OPERATION),
        "go": st.builds(
            ResumeBackfill, st.sampled_from(["one", "two"]), st.one_of(_UNTIL, st.just("end"))
        ),
        "start": starts("two"),
        "kill": st.builds(KillBackfill, st.sampled_from(["one", "two"])),
    }[what]
)


@st.composite
def histories(draw: st.DrawFn) -> BackfillHistory:
    """Draws a history, but never the simplest, which Hypothesis draws first."""
    assume(draw(st.integers(0, 1000)))
    fragments = draw(st.lists(st.integers(5, 8), min_size=3, max_size=4).map(tuple))
    first = draw(starts("one"))
    steps = draw(st.lists(_STEP, min_size=2, max_size=6))
    if first.door == "driver":
        steps.insert(draw(st.integers(0, len(steps))), KillBackfill("one"))
    if draw(st.integers(0, 7)) == 7:
        steps.append(
            Act(
                Ruin(
                    draw(st.sampled_from(["w" if first.column == "w" else "v", "w"])),
                    draw(st.sampled_from(RUINS)),
                )
            )
        )
    return BackfillHistory(
        fragments,
        (first, Act(draw(_OPERATION)), *steps),
        stable=draw(st.sampled_from([True, True, False])),
        indexed=draw(st.booleans()),
        fresh=draw(st.sampled_from([False, False, True])),
    )
