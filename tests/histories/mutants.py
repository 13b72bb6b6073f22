"""Committers with a deliberate defect, one per kind of concurrent change. With mutants the tests prove the power of the
checker.

A mutant replaces a few functions of the product in this process, in processes started during its life, and in Spark's
workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import assume
from hypothesis import strategies as st

from tests.histories import broken
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
    RewriteInput,
    RewriteTarget,
    Update,
    Upsert,
)

MUTANT = "LANCE_SPARK_TEST_MUTANT"
"""Environment variable with the mutant for a process of the tests."""

_KEYS = st.lists(st.integers(0, 17), min_size=3, max_size=6, unique=True).map(
    lambda keys: tuple(sorted(keys))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A defect.

    Attributes:
        row: The concurrent change with the defect.
        patches: Replaced functions, as `module:name`.
        acts: Concurrent changes during the backfill.
        starts: Starts of backfills for histories with this defect.
        stable: Whether row ids are stable.
        after: Steps after these.
    """

    row: str
    patches: dict[str, broken.Replace]
    acts: st.SearchStrategy[list[Any]]
    starts: st.SearchStrategy[StartBackfill]
    stable: st.SearchStrategy[bool] = dataclasses.field(default_factory=st.booleans)
    after: tuple[Step, ...] = ()


def _job(
    until: tuple[str, ...] = ("call 9", "commit"), **more: Any
) -> st.SearchStrategy[StartBackfill]:
    return st.sampled_from(until).map(
        lambda gate: StartBackfill("one", "job", "v", until=gate, **more)
    )


def _write(
    until: tuple[str, ...] = ("written", "commit"), **more: Any
) -> st.SearchStrategy[StartBackfill]:
    return st.sampled_from(until).map(
        lambda gate: StartBackfill("one", "write", "v", until=gate, **more)
    )


_EITHER = st.one_of(_job(), _write())


def _in_order(*operations: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*operations).map(list)


_COLUMN = (
    "lance_spark.commit.conflicts.verdicts:judge_column",
    "lance_spark.backfill.driver.rounds:judge_column",
)
_CHANGED = "lance_spark.rebase.row_origins:changed_rows"
_FRAGMENT = "lance_spark.commit.conflicts.verdicts:judge_fragment"
_PLAN = "lance_spark.commit.column_plan:ColumnCommitPlanner.plan"
_LOOK = "lance_spark.commit.conflicts.verdicts:Coverage.look"
_OF = "lance_spark.rebase.row_origins:Origins.of"
_LINEAGE = "lance_spark.commit.conflicts.row_lineage:Lineage"

_COMPACT = st.just(Compact(all=True))
_UPDATE_INPUT = st.builds(Update, _KEYS, st.just("a"))
_REWRITE = st.builds(RewriteInput, _KEYS)
_STABLE, _ADDRESSES = st.just(True), st.just(False)

MUTANTS: dict[str, Mutant] = {
    "new rows are computed": Mutant(
        row="append, insert-only merge_insert",
        patches={_LOOK: broken.new_rows_are_covered, _OF: broken.nothing_is_foreign},
        acts=_in_order(st.sampled_from([Append((100, 101)), InsertOnly((102, 103))])),
        starts=_job(),
    ),
    "a column that comes or goes is a conflict": Mutant(
        row="add, drop, rename another column",
        patches={_PLAN: broken.is_a_conflict("Merge", "Project")},
        acts=_in_order(st.sampled_from([AddColumn("e1"), DropColumn("other"), Rename("other")])),
        starts=_EITHER,
    ),
    "a renamed column is another one": Mutant(
        row="rename this column",
        patches=dict.fromkeys(_COLUMN, broken.renamed_is_lost),
        acts=_in_order(st.just(Rename("v"))),
        starts=_EITHER,
    ),
    "an index is a conflict": Mutant(
        row="create an index, tags, config",
        patches={_PLAN: broken.is_a_conflict("CreateIndex", "UpdateConfig")},
        acts=_in_order(st.sampled_from([Index("v"), Configure()])),
        starts=_EITHER,
    ),
    "deleted rows come back": Mutant(
        row="delete rows",
        patches={"lance_spark.commit.column_commit:attempt_commit": broken.deletions_are_forgotten},
        acts=_in_order(st.builds(Delete, _KEYS)),
        starts=_EITHER,
    ),
    "a fragment that is gone is an error": Mutant(
        row="delete fragments",
        patches={_PLAN: broken.gone_is_an_error},
        acts=_in_order(st.just(DeleteFragment((9,)))),
        starts=_EITHER,
    ),
    "moved rows are lost": Mutant(
        row="update or merge_insert by row rewrite, unchanged inputs",
        patches={"lance_spark.rebase.row_origins:look_up": broken.no_row_id_is_known},
        acts=_in_order(st.one_of(st.builds(Update, _KEYS), st.builds(Upsert, _KEYS))),
        starts=_EITHER,
        stable=_STABLE,
    ),
    "moved rows are lost without stable row ids": Mutant(
        row="update by row rewrite, without stable row ids",
        patches={_OF: broken.nothing_is_unknown},
        acts=_in_order(st.builds(Update, _KEYS)),
        starts=_job(),
        stable=_ADDRESSES,
    ),
    "inputs are not compared": Mutant(
        row="update by row rewrite, changed inputs",
        patches={
            _CHANGED: lambda _: (
                lambda *arguments, **_more: np.zeros(len(arguments[4].old), dtype=np.bool_)
            )
        },
        acts=_in_order(_UPDATE_INPUT),
        starts=_EITHER,
        stable=_STABLE,
    ),
    "stale values stay in a write": Mutant(
        row="update by row rewrite, changed inputs, DataFrame write",
        patches={"lance_spark.rebase.row_origins:Origins.changed": broken.nothing_is_stale},
        acts=_in_order(st.one_of(_UPDATE_INPUT, _REWRITE)),
        starts=_write(),
        stable=_STABLE,
    ),
    "rewritten inputs are not noticed": Mutant(
        row="update in place of an input",
        patches={
            _FRAGMENT: broken.inputs_look_the_same,
            "lance_spark.commit.conflicts.verdicts:Covered.is_right": broken.inputs_are_right,
        },
        acts=_in_order(_REWRITE),
        starts=_EITHER,
    ),
    "what slips in is not looked for": Mutant(
        row="update in place of an input, between look and commit",
        patches={_PLAN: broken.nothing_slips_in},
        acts=_in_order(_REWRITE),
        starts=_write(("commit",)),
    ),
    "ours always wins": Mutant(
        row="update in place of the target, NULL rows asked for",
        patches={
            "lance_spark.backfill.planning.selection:RangeRows.without_value": broken.all_lack_a_value,
            _FRAGMENT: broken.targets_look_the_same,
        },
        acts=_in_order(st.builds(RewriteTarget, _KEYS)),
        starts=_job(),
    ),
    "theirs always win": Mutant(
        row="update in place of the target, explicit filter",
        patches={"lance_spark.backfill.planning.selection:MatchingRows.select": broken.theirs_stay},
        acts=_in_order(st.builds(RewriteTarget, _KEYS)),
        starts=_job(where="all"),
    ),
    "the last file wins": Mutant(
        row="two backfills of one column",
        patches={_FRAGMENT: broken.targets_look_the_same},
        acts=_in_order(st.just(StartBackfill("two", "write", "v", "all"))),
        starts=st.one_of(_job(where="some"), _write(where="some")),
    ),
    "compacted fragments are gone": Mutant(
        row="compaction",
        patches={
            f"{_LINEAGE}.leaves": broken.constant([]),
            f"{_LINEAGE}.origins": broken.constant([]),
        },
        acts=_in_order(_COMPACT),
        starts=_EITHER,
    ),
    "compacted fragments are gone, index remap deferred": Mutant(
        row="compaction with index remapping deferred",
        patches={
            f"{_LINEAGE}.leaves": broken.constant([]),
            f"{_LINEAGE}.origins": broken.constant([]),
        },
        acts=_in_order(st.just(Compact(deferred=True))),
        starts=_EITHER,
        stable=_ADDRESSES,
    ),
    "deleted rows count in a compaction": Mutant(
        row="compaction, deletions before",
        patches={f"{_LINEAGE}._live_offsets": broken.deleted_rows_count},
        acts=_in_order(st.builds(Delete, _KEYS), _COMPACT),
        starts=_EITHER,
    ),
    "carried rows are computed again": Mutant(
        row="compaction, without a call",
        patches={
            "lance_spark.backfill.reuse.value_reuse:ValueFinder.find": broken.found_nothing(True)
        },
        acts=_in_order(_COMPACT),
        starts=_job(),
    ),
    "another column's backfill is a conflict": Mutant(
        row="backfill of another column",
        patches={_PLAN: broken.is_a_conflict("DataReplacement")},
        acts=_in_order(
            st.sampled_from([StartBackfill("two", door, "w") for door in ("job", "write")])
        ),  # type: ignore[arg-type]
        starts=_EITHER,
    ),
    "a restore is the end": Mutant(
        row="restore to a version that has the fragments",
        patches=dict.fromkeys(_COLUMN, broken.restored_is_lost),
        acts=_in_order(st.just(Append((100,))), st.just(Restore(1))),
        starts=_EITHER,
    ),
    "any column of the id will do": Mutant(
        row="restore past the column, overwrite, drop, type change",
        patches={
            **dict.fromkeys(_COLUMN, broken.any_column_will_do),
            "lance_spark.commit.column_plan:refuse_overwritten": broken.constant(None),
        },
        acts=_in_order(st.sampled_from(RUINS[:-1]).map(lambda how: Ruin("w", how))),
        starts=st.sampled_from(
            [StartBackfill("one", door, "w", until="commit") for door in ("job", "write")]
        ),  # type: ignore[arg-type]
    ),
    "the snapshot must be there": Mutant(
        row="cleanup_old_versions",
        patches={
            "lance_spark.commit.conflicts.table_state:SeenHistory.look": broken.snapshot_must_be_there
        },
        acts=_in_order(st.just(CleanUp())),
        starts=_EITHER,
    ),
    "nothing is taken from checkpoints": Mutant(
        row="between two runs: a killed run and its successor",
        patches={
            "lance_spark.backfill.reuse.value_reuse:ValueFinder.find": broken.found_nothing(False)
        },
        acts=_in_order(_COMPACT),
        starts=st.just(StartBackfill("one", "driver", "v", until="commit")),
        after=(KillBackfill("one"),),
    ),
    "files are left": Mutant(
        row="no orphaned column files",
        patches={
            "lance_spark.backfill.driver.checkpoint_upkeep:finish": broken.constant(None),
            "lance_spark.write.column_writer:finish": broken.constant(None),
        },
        acts=_in_order(_COMPACT),
        starts=_EITHER,
    ),
}


@contextlib.contextmanager
def applied(name: str) -> Iterator[None]:
    """Makes this process a mutant for a while."""
    with contextlib.ExitStack() as stack:
        for place, replace in MUTANTS[name].patches.items():
            owner, attribute = broken.owner_of(place)
            stack.enter_context(patch.object(owner, attribute, replace(getattr(owner, attribute))))
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class MutatedWork:
    """Work that a Spark worker runs in place of the product's own work."""

    work: Any
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with applied(self.name):
            yield from self.work(batches)


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """Makes this process, its child processes, and the workers of its jobs a mutant for a while."""
    from lance_spark.backfill.driver import scheduler

    real = scheduler.TaskRunner

    def work(**fields: Any) -> MutatedWork:
        return MutatedWork(work=real(**fields), name=name)

    with (
        patch.dict(os.environ, {MUTANT: name}),
        patch.object(scheduler, "TaskRunner", work),
        applied(name),
    ):
        yield


@st.composite
def histories_for(draw: st.DrawFn, name: str) -> BackfillHistory:
    """Draws a history with the concurrent change for which a mutant is wrong."""
    mutant = MUTANTS[name]
    assume(draw(st.integers(0, 1000)))
    acts = [act if isinstance(act, StartBackfill) else Act(act) for act in draw(mutant.acts)]
    steps: list[Step] = [
        draw(mutant.starts),
        *acts,
        *mutant.after,
        ResumeBackfill("one"),
        ResumeBackfill("two"),
    ]
    return BackfillHistory(
        (6, 6, 6), tuple(steps), stable=draw(mutant.stable), indexed=draw(st.booleans())
    )
