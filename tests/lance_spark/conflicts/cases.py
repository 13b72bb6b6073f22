"""The table of conflicts: the outcome of a job and of a DataFrame write for each kind of concurrent commit, at each
moment.

A table has the ids 0 to 39, ten in each of four fragments, the input `x`, equal to the id, `y`, and the target `v`. A
row of the table of conflicts lists the differences from a run without the concurrent writer. By default counters are 0,
a value is the result for the row's input at the end, and each row of the snapshot is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from lance_spark.errors import CommitConflictError, CommitImpossibleError, LanceSparkError
from tests.lance_spark.conflicts.others import (
    ROWS,
    STEP,
    Act,
    add_target,
    add_target_with_values,
    append,
    append_with_values,
    backfill_another,
    cast_input,
    cast_input_and_rename,
    cast_target,
    change_columns,
    change_settings,
    clean_up,
    clean_up_all,
    clean_up_ours,
    compact,
    compact_and_update,
    compact_deferred,
    compact_deletions,
    compact_in_rounds,
    compact_the_first_and_rewrite,
    delete_and_add_column,
    delete_compact_and_delete,
    delete_fragment,
    delete_rows,
    drop_and_reuse_id,
    drop_input,
    drop_target,
    index_target,
    insert_only,
    name_of,
    one_after_another,
    our_delete,
    our_delete_of_a_fragment,
    our_rewrite_of_input,
    our_update_of_input,
    our_update_of_other,
    overwrite,
    rename_target,
    restore_kept,
    restore_past,
    restore_there_and_back,
    restore_unfilled,
    rewrite_and_compact_the_first,
    rewrite_and_update_target,
    rewrite_input,
    rewrite_input_and_cast,
    rewrite_input_as_it_was,
    rewrite_input_like_another,
    rewrite_input_of_null,
    rewrite_one_input,
    rewrite_other,
    rewrite_target,
    rewrite_target_with_null,
    update_and_compact,
    update_input,
    update_input_and_delete,
    update_input_and_target,
    update_input_and_unset_target,
    update_input_of_the_left,
    update_other,
    update_other_of_the_left,
    upsert,
)

Moment = Literal["before", "between", "staged", "slipped", "adding", "failed", "finished"]
"""The moment of the concurrent writer's change.

`before`: the job has computed some rows, or the tasks of a write all rows, and nothing is committed. `between`: the job
has committed the first two of four fragments, and computes the third. `staged`: the job has finished the files of the
first three fragments, and committed nothing. `slipped`: the committer has looked at the latest version, and is about to
commit all fragments. `adding`: the committer is about to add the new column. `failed`: a job has failed with a missing
batch in one of its four fragments, and has committed the other three. `finished`: a job has filled the column.
"""

Column = Literal["new", "ours", "theirs"]
"""The target of a write: absent, filled by an earlier write, or added by another writer without values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """State after a successful job or write.

    Attributes:
        calls: Additional calls of the UDF after one call for each row of the snapshot, by `x`.
        uncalled: The `x` of rows of the snapshot without a call, because their input was different before.
        null: Ids of rows without a value. The next job calls exactly these rows.
        old: Ids of rows that keep their value from before the write.
        foreign: Remaining values of other writers, by id.
        column: Name of the target at the end.
        next: Regular expression for the error of the next job; empty for success.
        fragments_gone: Missing fragments in the result of a write; None where irrelevant.
        counters: Counters of the result.
    """

    calls: tuple[int, ...] = ()
    uncalled: tuple[int, ...] = ()
    null: tuple[int, ...] = ()
    old: tuple[int, ...] = ()
    foreign: Mapping[int, int] = field(default_factory=dict)
    column: str = "v"
    next: str = ""
    fragments_gone: tuple[int, ...] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The error of a job or write, without a commit.

    Attributes:
        error: Its type.
        message: A regular expression for its message.
        fragments: Fragments named by the error; None where irrelevant.
        dated: Whether the message names the conflicting version and its time.
    """

    error: type[LanceSparkError]
    message: str
    fragments: tuple[int, ...] | None = None
    dated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedValues:
    """Outdated values after a finished job and a later writer.

    Attributes:
        stale: Rows with an outdated value, by the plan.
        pending: Rows without a value, by the plan.
        plain: Calls of a job with the default selection, by `x`.
        result_stale: Outdated rows in the result of that job; None if equal to `stale`.
        calls: Calls of a later job with `stale=True`, by `x`.
        unverified: Rows among `stale` that may be up to date, by the plan.
        foreign: Remaining values of the other writer, by id.
    """

    stale: int = 0
    unverified: int = 0
    pending: int = 0
    plain: tuple[int, ...] = ()
    result_stale: int | None = None
    calls: tuple[int, ...] = ()
    foreign: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table.

    Attributes:
        act: The change by the concurrent writer.
        moments: Its moments.
        stable: Whether the table has stable row ids.
        expected: The outcome of the job or the write.
        options: Options of the job or the write.
        columns: Targets of a write to which the row applies.
    """

    act: Act
    moments: str
    stable: tuple[bool, ...]
    expected: Completed | Refused | OutdatedValues
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: str = "new ours theirs"

    @property
    def name(self) -> str:
        """The operation and the options, for ids of tests."""
        return "-".join(
            [name_of(self.act), *(f"{name}={value}" for name, value in self.options.items())]
        )


def completed(
    *,
    carried: int = 0,
    recomputed: int = 0,
    nulled: int = 0,
    deleted: int = 0,
    new: int = 0,
    **more: Any,
) -> Completed:
    """Returns a successful outcome, with the counters under their names in results."""
    names = ("rows_carried", "rows_recomputed", "rows_nulled", "rows_gone", "new_rows")
    return Completed(
        counters=dict(zip(names, (carried, recomputed, nulled, deleted, new), strict=True)), **more
    )


def variations(table: tuple[Case, ...]) -> list[object]:
    """Returns each row of a table of one moment, with each kind of row ids, as parameters of a test."""
    return [
        pytest.param(case, stable, id=f"{case.name}-{'stable' if stable else 'addresses'}")
        for case in table
        for stable in case.stable
    ]


def refused(
    message: str, error: type[LanceSparkError] = CommitImpossibleError, **more: Any
) -> Refused:
    return Refused(error=error, message=message, **more)


def conflict(message: str, **more: Any) -> Refused:
    """Returns the outcome of an error after which a retry may succeed."""
    return Refused(error=CommitConflictError, message=message, **more)


STABLE, ADDRESSES, BOTH = (True,), (False,), (True, False)
NEW = (1000, 1001)
"""Rows added by `append` and `insert_only`."""
MOVED_ROWS = (5, 6, 10, 25, 35)
"""Rows moved by `update_other`."""
UPDATED, UPDATED_CALLS = (5, 25, 35), (5 + STEP, 25 + STEP, 35 + STEP)
"""Rows whose input `update_input` changes, and their new inputs."""
REWRITTEN, REWRITTEN_CALLS = (5, 35), (5 + STEP, 35 + STEP)
"""The same for `rewrite_input`, which also writes two rows unchanged."""
FOREIGN_VALUES = {5: -5, 35: -35}
"""Values set by `rewrite_target`."""
ALL = tuple(range(ROWS))
CAST_CALLS = (*(x for x in ALL if x not in REWRITTEN), *REWRITTEN_CALLS)
"""A call for each row with its input after `rewrite_input`."""

ANY = "before between staged slipped"
AT_ONCE = "before staged slipped"
"""Nothing is committed when the concurrent writer acts."""
LOOKED_AT = "before staged"
"""The committer has committed nothing, and sees the change."""
NULL_STALE = {"on_stale": "null"}
EVERY_ROW = {"where": "1=1"}
GONE_INPUT = r"Input columns are gone: 'x' \(cast or created again: 'x'\)\. "

APPEND_AND_UPDATE = one_after_another(append, update_input)
NO_INPUT = one_after_another(rewrite_other, delete_rows, compact_deletions, change_columns)
UPDATE_OTHER_AND_COMPACT = one_after_another(update_other, compact_deletions)
REWRITE_COMPACT_AND_UPDATE = one_after_another(rewrite_input, compact, update_and_compact)
CHANGE_AND_CLEAN_UP = one_after_another(change_columns, clean_up_all)
REWRITE_ONE_AND_CLEAN_UP = one_after_another(rewrite_one_input, clean_up_all)
COMPACT_AGAIN = one_after_another(compact, compact_in_rounds)
DELETE_AND_COMPACT = one_after_another(delete_rows, compact_deletions)
COMPACT_AND_DELETE = one_after_another(compact, delete_rows)
APPEND_AND_COMPACT = one_after_another(append, compact)
UPDATE_TWICE = one_after_another(update_input, update_input)
REWRITE_AND_COMPACT = one_after_another(rewrite_input, compact)
REWRITE_UPDATE_AND_COMPACT = one_after_another(rewrite_input, update_other, compact)
COMPACT_AND_REWRITE = one_after_another(compact, rewrite_input)
REWRITE_TARGET_AND_COMPACT = one_after_another(rewrite_target, compact)
DELETE_AND_CLEAN_UP = one_after_another(delete_rows, clean_up)
APPEND_CHANGE_AND_CLEAN_UP = one_after_another(append, change_columns, clean_up)
REWRITE_OTHER_AND_CLEAN_UP = one_after_another(rewrite_other, append, clean_up)
COMPACT_AND_CLEAN_UP = one_after_another(compact, clean_up)
COMPACT_AND_CLEAN_UP_ALL = one_after_another(compact, clean_up_all)
UPDATE_INPUT_AND_CLEAN_UP = one_after_another(update_input, clean_up)
UPDATE_COMPACT_AND_CLEAN_UP = one_after_another(update_input, compact, clean_up)
UPDATE_OTHER_AND_CLEAN_UP = one_after_another(update_other, clean_up)
REWRITE_AND_CLEAN_UP = one_after_another(rewrite_input, clean_up)

# fmt: off
JOBS: tuple[Case, ...] = (
    # concurrent change             when        row ids    outcome of a job
    # New rows, other columns, settings
    Case(append,                    ANY,        BOTH,      completed(new=2, null=NEW)),
    Case(insert_only,               ANY,        BOTH,      completed(new=2, null=NEW)),
    Case(change_columns,            ANY,        BOTH,      completed()),
    Case(change_settings,           ANY,        BOTH,      completed()),
    Case(index_target,              ANY,        BOTH,      completed()),
    Case(rewrite_other,             ANY,        BOTH,      completed()),
    Case(backfill_another,          ANY,        BOTH,      completed()),
    Case(rename_target,             LOOKED_AT,  BOTH,      completed(carried=40, column="w")),
    Case(rename_target,             "between",  BOTH,      completed(carried=20, column="w")),
    Case(rename_target,             "slipped",  BOTH,      completed(column="w")),
    # Deletions and restores
    Case(delete_rows,               ANY,        BOTH,      completed(deleted=4)),
    Case(our_delete,                ANY,        BOTH,      completed(deleted=4)),
    Case(delete_fragment,           ANY,        BOTH,      completed(deleted=10)),
    Case(our_delete_of_a_fragment,  ANY,        BOTH,      completed(deleted=10)),
    Case(delete_and_add_column,     ANY,        BOTH,      completed(deleted=5)),
    Case(restore_kept,              ANY,        BOTH,      completed()),
    Case(restore_there_and_back,    ANY,        BOTH,      completed()),
    Case(restore_unfilled,          AT_ONCE,    BOTH,      completed()),
    Case(restore_unfilled,          "between",  BOTH,      completed(carried=20)),
    # Updates, which move rows
    Case(update_other,              AT_ONCE,    STABLE,    completed(carried=5)),
    Case(our_update_of_other,       AT_ONCE,    STABLE,    completed(carried=5)),
    Case(update_other,              "between",  STABLE,    completed(carried=3)),
    Case(our_update_of_other,       "between",  STABLE,    completed(carried=3)),
    Case(update_other,              ANY,        ADDRESSES, completed(recomputed=5, calls=MOVED_ROWS)),
    Case(our_update_of_other,       ANY,        ADDRESSES, completed(recomputed=5, calls=MOVED_ROWS)),
    Case(update_input,              ANY,        BOTH,      completed(recomputed=3, calls=UPDATED_CALLS)),
    Case(our_update_of_input,       ANY,        BOTH,      completed(recomputed=3, calls=UPDATED_CALLS)),
    Case(update_input,              ANY,        STABLE,    completed(nulled=3, null=UPDATED), NULL_STALE),
    Case(our_update_of_input,       ANY,        STABLE,    completed(nulled=3, null=UPDATED), NULL_STALE),
    Case(update_input,              ANY,        ADDRESSES, completed(recomputed=3, calls=UPDATED_CALLS), NULL_STALE),
    Case(our_update_of_input,       ANY,        ADDRESSES, completed(recomputed=3, calls=UPDATED_CALLS), NULL_STALE),
    Case(update_input,              ANY,        STABLE,
         completed(recomputed=3, calls=UPDATED_CALLS), {"where": "x < 1000"}),
    Case(our_update_of_input,       ANY,        STABLE,
         completed(recomputed=3, calls=UPDATED_CALLS), {"where": "x < 1000"}),
    Case(update_input_and_target,   ANY,        BOTH,      completed(recomputed=3, calls=UPDATED_CALLS)),
    Case(update_input_and_delete,   ANY,        BOTH,      completed(recomputed=1, deleted=3, calls=(25 + STEP,))),
    Case(UPDATE_TWICE,              ANY,        BOTH,
         completed(recomputed=3, calls=tuple(i + 2 * STEP for i in UPDATED))),
    Case(upsert,                    AT_ONCE,    STABLE,
         completed(carried=2, recomputed=2, new=1, calls=(5 + STEP, 25 + STEP), null=(1000,))),
    Case(upsert,                    "between",  STABLE,
         completed(carried=1, recomputed=2, new=1, calls=(5 + STEP, 25 + STEP), null=(1000,))),
    Case(upsert,                    ANY,        ADDRESSES,
         completed(recomputed=5, new=1, calls=(5 + STEP, 6, 25 + STEP, 36, 1000))),
    # Compactions
    Case(compact,                   AT_ONCE,    BOTH,      completed(carried=40)),
    Case(compact,                   "between",  BOTH,      completed(carried=20)),
    Case(compact_deferred,          AT_ONCE,    ADDRESSES, completed(carried=40)),
    Case(compact_deferred,          "between",  ADDRESSES, completed(carried=20)),
    Case(compact_in_rounds,         AT_ONCE,    BOTH,      completed(carried=33, deleted=7)),
    Case(compact_in_rounds,         "between",  BOTH,      completed(carried=16, deleted=7)),
    Case(DELETE_AND_COMPACT,        AT_ONCE,    BOTH,      completed(carried=36, deleted=4)),
    Case(DELETE_AND_COMPACT,        "between",  BOTH,      completed(carried=18, deleted=4)),
    Case(COMPACT_AND_DELETE,        AT_ONCE,    BOTH,      completed(carried=36, deleted=4)),
    Case(COMPACT_AND_DELETE,        "between",  BOTH,      completed(carried=18, deleted=4)),
    Case(APPEND_AND_COMPACT,        AT_ONCE,    BOTH,      completed(carried=40, new=2, null=NEW)),
    Case(APPEND_AND_COMPACT,        "between",  BOTH,      completed(carried=20, new=2, null=NEW)),
    Case(compact_and_update,        AT_ONCE,    STABLE,    completed(carried=37, recomputed=3, calls=UPDATED_CALLS)),
    Case(compact_and_update,        "between",  STABLE,    completed(carried=19, recomputed=3, calls=UPDATED_CALLS)),
    Case(compact_and_update,        AT_ONCE,    ADDRESSES, completed(carried=35, calls=(6, 10, *UPDATED_CALLS))),
    Case(compact_and_update,        "between",  ADDRESSES,
         completed(carried=18, recomputed=5, calls=(6, 10, *UPDATED_CALLS))),
    # Inputs rewritten in place
    Case(rewrite_input,             LOOKED_AT,  BOTH,      completed(carried=18, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      LOOKED_AT,  BOTH,      completed(carried=18, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_input,             "between",  BOTH,      completed(carried=9, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      "between",  BOTH,      completed(carried=9, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_input,             "slipped",  BOTH,      completed(recomputed=2, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      "slipped",  BOTH,      completed(recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_input,             LOOKED_AT,  BOTH,      completed(carried=18, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(our_rewrite_of_input,      LOOKED_AT,  BOTH,      completed(carried=18, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(rewrite_input,             "between",  BOTH,      completed(carried=9, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(our_rewrite_of_input,      "between",  BOTH,      completed(carried=9, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(rewrite_input,             "slipped",  BOTH,      completed(nulled=2, null=REWRITTEN), NULL_STALE),
    Case(our_rewrite_of_input,      "slipped",  BOTH,      completed(nulled=2, null=REWRITTEN), NULL_STALE),
    Case(rewrite_input_as_it_was,   LOOKED_AT,  BOTH,      completed(carried=30)),
    Case(rewrite_input_as_it_was,   "between",  BOTH,      completed(carried=20)),
    Case(rewrite_input_as_it_was,   "slipped",  BOTH,      completed()),
    Case(rewrite_input_like_another, LOOKED_AT, BOTH,      completed(carried=18, recomputed=2, calls=(7, 7))),
    Case(rewrite_input_like_another, "between", BOTH,      completed(carried=9, recomputed=2, calls=(7, 7))),
    Case(rewrite_input_like_another, "slipped", BOTH,      completed(recomputed=2, calls=(7, 7))),
    Case(REWRITE_UPDATE_AND_COMPACT, AT_ONCE,   STABLE,    completed(carried=38, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(REWRITE_UPDATE_AND_COMPACT, "between", STABLE,    completed(carried=21, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(REWRITE_UPDATE_AND_COMPACT, AT_ONCE,   ADDRESSES, completed(carried=35, calls=(6, 10, 25, *REWRITTEN_CALLS))),
    Case(REWRITE_UPDATE_AND_COMPACT, "between", ADDRESSES,
         completed(carried=19, recomputed=5, calls=(6, 10, 25, *REWRITTEN_CALLS))),
    Case(COMPACT_AND_REWRITE,       AT_ONCE,    BOTH,      completed(carried=38, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(COMPACT_AND_REWRITE,       "between",  BOTH,      completed(carried=22, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_and_compact_the_first, AT_ONCE, BOTH,     completed(carried=19, recomputed=1, calls=(5 + STEP,))),
    Case(rewrite_and_compact_the_first, "between", BOTH,   completed(carried=1, recomputed=1, calls=(5 + STEP,))),
    Case(compact_the_first_and_rewrite, AT_ONCE, BOTH,     completed(carried=19, recomputed=1, calls=(5 + STEP,))),
    Case(compact_the_first_and_rewrite, "between", BOTH,   completed(carried=3, recomputed=1, calls=(5 + STEP,))),
    # Inputs cast or dropped: their results count as outdated, or stay
    Case(cast_input,                AT_ONCE,    BOTH,      completed(calls=ALL, next=GONE_INPUT)),
    Case(cast_input,                "between",  BOTH,      completed(recomputed=20, calls=ALL, next=GONE_INPUT)),
    Case(rewrite_input_and_cast,    AT_ONCE,    BOTH,      completed(calls=CAST_CALLS, next=GONE_INPUT)),
    Case(rewrite_input_and_cast,    "between",  BOTH,      completed(recomputed=20, calls=CAST_CALLS, next=GONE_INPUT)),
    # The target, rewritten in place: foreign values stay unless a filter selects their rows
    Case(rewrite_target,            AT_ONCE,    BOTH,      completed(carried=18, foreign=FOREIGN_VALUES)),
    Case(rewrite_target,            "between",  BOTH,      completed(carried=10, foreign=FOREIGN_VALUES)),
    Case(rewrite_target,            ANY,        BOTH,      completed(carried=20), EVERY_ROW),
    Case(rewrite_target_with_null,  AT_ONCE,    BOTH,      completed(carried=20)),
    Case(rewrite_target_with_null,  "between",  BOTH,      completed(carried=13)),
    Case(REWRITE_TARGET_AND_COMPACT, AT_ONCE,   BOTH,      completed(carried=38, foreign=FOREIGN_VALUES)),
    Case(REWRITE_TARGET_AND_COMPACT, "between", STABLE,    completed(carried=20, foreign=FOREIGN_VALUES)),
    Case(REWRITE_TARGET_AND_COMPACT, "between", ADDRESSES, completed(carried=10, foreign=FOREIGN_VALUES)),
    # Cleanups: without history, rows that moved or may have changed are recomputed
    Case(clean_up,                  ANY,        BOTH,      completed()),
    Case(clean_up_all,              "before between", BOTH, completed()),
    Case(clean_up_all,              "staged",   BOTH,      completed(carried=30)),
    Case(clean_up_ours,             ANY,        BOTH,      completed()),
    Case(COMPACT_AND_CLEAN_UP,      "before",   BOTH,      completed(calls=ALL[:10])),
    Case(COMPACT_AND_CLEAN_UP,      "between",  BOTH,      completed(recomputed=40, calls=ALL[:30])),
    Case(COMPACT_AND_CLEAN_UP,      "staged slipped", BOTH, completed(calls=ALL)),
    Case(COMPACT_AND_CLEAN_UP_ALL,  "before",   BOTH,      completed(calls=ALL[:10])),
    Case(COMPACT_AND_CLEAN_UP_ALL,  "between",  BOTH,      completed(recomputed=40, calls=ALL[:30])),
    Case(COMPACT_AND_CLEAN_UP_ALL,  "staged slipped", BOTH, completed(calls=ALL)),
    Case(UPDATE_INPUT_AND_CLEAN_UP, ANY,        BOTH,      completed(recomputed=3, calls=UPDATED_CALLS)),
    Case(UPDATE_COMPACT_AND_CLEAN_UP, "before", BOTH,
         completed(calls=(*range(5), *range(6, 10), *UPDATED_CALLS), uncalled=(25, 35))),
    Case(UPDATE_COMPACT_AND_CLEAN_UP, "between", BOTH,
         completed(recomputed=40, calls=(*(x for x in ALL[:30] if x not in UPDATED), *UPDATED_CALLS), uncalled=(35,))),
    Case(UPDATE_COMPACT_AND_CLEAN_UP, "staged slipped", BOTH,
         completed(calls=(*(x for x in ALL if x not in UPDATED), *UPDATED_CALLS))),
    Case(UPDATE_OTHER_AND_CLEAN_UP, ANY,        BOTH,      completed(recomputed=5, calls=MOVED_ROWS)),
    # Changes that make the result unusable
    Case(drop_target,               ANY,        BOTH,      refused(r"Project|drop")),
    Case(drop_and_reuse_id,         ANY,        BOTH,      refused(r"Project|drop")),
    Case(cast_target,               ANY,        BOTH,      refused(r"type|cast")),
    Case(overwrite,                 ANY,        BOTH,      refused(r"Overwrite|overwritten")),
    Case(restore_past,              ANY,        BOTH,      refused(r"Restore|restored")),
    Case(cast_input_and_rename,     ANY,        BOTH,
         refused(r"input column 'x'.*another name.*Run the backfill again")),
)

ALWAYS = "before slipped adding"
EARLY = "before adding"
"""The committer sees the change before it commits values."""
EXISTING, TOKEN = "ours theirs", "new ours"
ERROR = {"on_stale": "error"}
TWO_INPUTS = {"input_columns": "x,y"}
SMALL = {"carry_over_max_bytes": "16"}
CLEANED = r"clean.*(again|tag)"
TAKEN_BACK = rf"(?s)(?=.*taken back).*{CLEANED}"
UNKNOWN = r"may have been dropped and recreated"

WRITES: tuple[Case, ...] = (
    # concurrent change             when        row ids    outcome of a DataFrame write
    # New rows, other columns, settings
    Case(append,                    EARLY,      BOTH,      completed(new=2, null=NEW)),
    Case(append,                    "slipped",  BOTH,      completed(null=NEW)),
    Case(insert_only,               EARLY,      BOTH,      completed(new=2, null=NEW)),
    Case(insert_only,               "slipped",  BOTH,      completed(null=NEW)),
    Case(change_columns,            ALWAYS,     BOTH,      completed()),
    Case(change_settings,           ALWAYS,     BOTH,      completed()),
    Case(index_target,              "before slipped", BOTH, completed(), columns=EXISTING),
    Case(rewrite_other,             ALWAYS,     BOTH,      completed()),
    Case(rewrite_other,             ALWAYS,     BOTH,      completed(carried=18, nulled=2, null=REWRITTEN), TWO_INPUTS),
    Case(backfill_another,          ALWAYS,     BOTH,      completed()),
    Case(rename_target,             "before",   BOTH,      conflict("renamed to 'w'"), columns=EXISTING),
    Case(rename_target,             "slipped",  BOTH,      completed(column="w")),
    Case(add_target,                EARLY,      BOTH,      conflict("by a concurrent writer"), columns="new"),
    Case(add_target_with_values,    EARLY,      BOTH,      conflict("by a concurrent writer"), columns="new"),
    # Deletions and restores
    Case(delete_rows,               EARLY,      BOTH,      completed(deleted=4)),
    Case(our_delete,                EARLY,      BOTH,      completed(deleted=4)),
    Case(delete_rows,               "slipped",  BOTH,      completed()),
    Case(our_delete,                "slipped",  BOTH,      completed()),
    Case(delete_fragment,           ALWAYS,     BOTH,      completed(deleted=10, fragments_gone=(3,))),
    Case(our_delete_of_a_fragment,  ALWAYS,     BOTH,      completed(deleted=10, fragments_gone=(3,))),
    Case(delete_and_add_column,     ALWAYS,     BOTH,      completed(deleted=5)),
    Case(restore_kept,              ALWAYS,     BOTH,      completed()),
    Case(restore_there_and_back,    ALWAYS,     BOTH,      completed(), columns=TOKEN),
    Case(restore_there_and_back,    "before slipped", BOTH,
         refused("may be another column now .Restore"), columns="theirs"),
    # Updates, which move rows
    Case(update_other,              ALWAYS,     STABLE,    completed(carried=5)),
    Case(our_update_of_other,       ALWAYS,     STABLE,    completed(carried=5)),
    Case(update_other,              ALWAYS,     ADDRESSES, completed(deleted=5, new=5, old=MOVED_ROWS)),
    Case(our_update_of_other,       ALWAYS,     ADDRESSES, completed(deleted=5, new=5, old=MOVED_ROWS)),
    Case(update_other,              ALWAYS,     STABLE,    completed(carried=5), ERROR),
    Case(our_update_of_other,       ALWAYS,     STABLE,    completed(carried=5), ERROR),
    Case(update_other,              ALWAYS,     STABLE,    completed(nulled=5, null=MOVED_ROWS), TWO_INPUTS),
    Case(our_update_of_other,       ALWAYS,     STABLE,    completed(nulled=5, null=MOVED_ROWS), TWO_INPUTS),
    Case(update_input,              ALWAYS,     STABLE,    completed(nulled=3, null=UPDATED)),
    Case(our_update_of_input,       ALWAYS,     STABLE,    completed(nulled=3, null=UPDATED)),
    Case(update_input,              ALWAYS,     ADDRESSES, completed(deleted=3, new=3, old=UPDATED)),
    Case(our_update_of_input,       ALWAYS,     ADDRESSES, completed(deleted=3, new=3, old=UPDATED)),
    Case(update_input,              ALWAYS,     STABLE,    conflict("input", fragments=(4,)), ERROR),
    Case(update_input_and_target,   "before slipped", STABLE,
         completed(nulled=1, deleted=2, null=(25,), foreign={5: -777, 35: -777}), columns=EXISTING),
    Case(update_input_and_target,   "before slipped", ADDRESSES,
         completed(deleted=3, new=3, old=(25,), foreign={5: -777, 35: -777}), columns=EXISTING),
    Case(update_input_and_delete,   ALWAYS,     STABLE,    completed(nulled=1, deleted=3, null=(25,))),
    Case(update_input_and_delete,   ALWAYS,     ADDRESSES, completed(deleted=4, new=1, old=(25,))),
    Case(UPDATE_TWICE,              ALWAYS,     STABLE,    completed(nulled=3, null=UPDATED)),
    Case(UPDATE_TWICE,              ALWAYS,     ADDRESSES, completed(deleted=3, new=3, old=UPDATED)),
    Case(upsert,                    ALWAYS,     STABLE,    completed(carried=2, nulled=2, new=1, null=(5, 25, 1000))),
    Case(upsert,                    ALWAYS,     ADDRESSES, completed(deleted=4, new=5, old=(5, 6, 25, 36), null=(1000,))),
    # Compactions
    Case(compact,                   ALWAYS,     BOTH,      completed(carried=40)),
    Case(compact,                   "before slipped", BOTH,
         conflict("carry_over_max_bytes allows 16.* write again", fragments=(4,)), SMALL),
    Case(compact_deferred,          ALWAYS,     ADDRESSES, completed(carried=40)),
    Case(compact_in_rounds,         ALWAYS,     BOTH,      completed(carried=33, deleted=7)),
    Case(DELETE_AND_COMPACT,        ALWAYS,     BOTH,      completed(carried=36, deleted=4)),
    Case(COMPACT_AND_DELETE,        ALWAYS,     BOTH,      completed(carried=36, deleted=4)),
    Case(APPEND_AND_COMPACT,        ALWAYS,     BOTH,      completed(carried=40, new=2, null=NEW)),
    Case(compact_and_update,        ALWAYS,     STABLE,    completed(carried=37, nulled=3, null=UPDATED)),
    Case(compact_and_update,        ALWAYS,     ADDRESSES, completed(carried=35, deleted=5, new=5, old=MOVED_ROWS)),
    # Inputs rewritten in place, cast or dropped
    Case(rewrite_input,             ALWAYS,     BOTH,      completed(carried=18, nulled=2, null=REWRITTEN)),
    Case(our_rewrite_of_input,      ALWAYS,     BOTH,      completed(carried=18, nulled=2, null=REWRITTEN)),
    Case(rewrite_input,             "before",   BOTH,      conflict("input", fragments=(0,)), ERROR),
    Case(our_rewrite_of_input,      "before",   BOTH,      conflict("input", fragments=(0,)), ERROR),
    Case(rewrite_input,             "slipped",  BOTH,      conflict("input.*taken back", fragments=(0,)), ERROR),
    Case(our_rewrite_of_input,      "slipped",  BOTH,      conflict("input.*taken back", fragments=(0,)), ERROR),
    Case(rewrite_input_as_it_was,   ALWAYS,     BOTH,      completed(carried=30)),
    Case(rewrite_input_like_another, ALWAYS,    BOTH,      completed(carried=18, nulled=2, null=REWRITTEN)),
    Case(REWRITE_AND_COMPACT,       ALWAYS,     BOTH,      completed(carried=38, nulled=2, null=REWRITTEN)),
    Case(REWRITE_UPDATE_AND_COMPACT, ALWAYS,    STABLE,    completed(carried=38, nulled=2, null=REWRITTEN)),
    Case(REWRITE_UPDATE_AND_COMPACT, ALWAYS,    ADDRESSES, completed(carried=35, deleted=5, new=5, old=MOVED_ROWS)),
    Case(COMPACT_AND_REWRITE,       ALWAYS,     BOTH,      completed(carried=38, nulled=2, null=REWRITTEN)),
    Case(rewrite_and_compact_the_first, ALWAYS, BOTH,      completed(carried=19, nulled=1, null=(5,))),
    Case(compact_the_first_and_rewrite, ALWAYS, BOTH,      completed(carried=19, nulled=1, null=(5,))),
    Case(cast_input,                ALWAYS,     BOTH,      completed(nulled=40, null=ALL)),
    Case(rewrite_input_and_cast,    ALWAYS,     BOTH,      completed(nulled=40, null=ALL)),
    Case(cast_input_and_rename,     ALWAYS,     BOTH,      refused("input column 'x'.*another name")),
    Case(drop_input,                ALWAYS,     BOTH,      completed()),
    # The target, rewritten in place: the write wins
    Case(rewrite_target,            "before slipped", BOTH, completed(carried=20), columns=EXISTING),
    Case(rewrite_target_with_null,  "before slipped", BOTH, completed(carried=20), columns=EXISTING),
    Case(REWRITE_TARGET_AND_COMPACT, "before slipped", BOTH, completed(carried=40), columns=EXISTING),
    # Cleanups: without history, a write with possibly moved rows commits nothing
    Case(clean_up,                  ALWAYS,     BOTH,      completed()),
    Case(clean_up_ours,             ALWAYS,     BOTH,      completed()),
    Case(DELETE_AND_CLEAN_UP,       "before",   BOTH,      completed(deleted=4), columns=TOKEN),
    Case(DELETE_AND_CLEAN_UP,       "slipped",  BOTH,      completed(), columns=TOKEN),
    Case(APPEND_CHANGE_AND_CLEAN_UP, "before slipped", BOTH, completed(null=NEW), columns=TOKEN),
    Case(REWRITE_OTHER_AND_CLEAN_UP, "before slipped", BOTH, completed(null=NEW), columns=TOKEN),
    Case(COMPACT_AND_CLEAN_UP,      "before slipped", BOTH, refused(CLEANED, dated=False), columns=TOKEN),
    Case(UPDATE_OTHER_AND_CLEAN_UP, "before",   BOTH,      refused(CLEANED, dated=False), columns=TOKEN),
    Case(UPDATE_OTHER_AND_CLEAN_UP, "slipped",  BOTH,      conflict(TAKEN_BACK), columns=TOKEN),
    Case(UPDATE_INPUT_AND_CLEAN_UP, "before",   BOTH,      refused(CLEANED, dated=False), columns=TOKEN),
    Case(UPDATE_INPUT_AND_CLEAN_UP, "slipped",  BOTH,      conflict(TAKEN_BACK), columns=TOKEN),
    Case(REWRITE_AND_CLEAN_UP,      "before",   BOTH,      refused(CLEANED, dated=False), columns=TOKEN),
    Case(REWRITE_AND_CLEAN_UP,      "slipped",  BOTH,      conflict(TAKEN_BACK), columns=TOKEN),
    Case(DELETE_AND_CLEAN_UP,       "before",   BOTH,      refused(UNKNOWN, dated=False), columns="theirs"),
    Case(DELETE_AND_CLEAN_UP,       "slipped",  BOTH,      conflict(UNKNOWN), columns="theirs"),
    # Changes that make the result unusable
    Case(drop_target,               "before slipped", BOTH,
         refused(r"column 'v' was dropped .Project"), columns=EXISTING),
    Case(drop_and_reuse_id,         "before slipped", BOTH, refused(r"column 'v'.*Project"), columns=EXISTING),
    Case(cast_target,               "before slipped", BOTH,
         refused(r"changed its type from int64 to int32"), columns=EXISTING),
    Case(overwrite,                 ALWAYS,     BOTH,      refused(r"Overwrite at version")),
    Case(restore_past,              "before slipped", BOTH, refused(r"Restore at version"), columns=EXISTING),
    Case(restore_past,              EARLY,      BOTH,      completed(), columns="new"),
)

FAILED, FINISHED = "failed", "finished"
SUCCESSORS: tuple[Case, ...] = (
    # concurrent change             when        row ids    calls of the next job besides the uncomputed rows
    Case(compact,                   FAILED,     BOTH,      completed()),
    Case(compact_deferred,          FAILED,     ADDRESSES, completed()),
    Case(COMPACT_AGAIN,             FAILED,     BOTH,      completed()),
    Case(delete_compact_and_delete, FAILED,     BOTH,      completed(uncalled=(28,))),
    Case(APPEND_AND_COMPACT,        FAILED,     BOTH,      completed(calls=NEW)),
    Case(change_columns,            FAILED,     BOTH,      completed()),
    Case(rename_target,             FAILED,     BOTH,      completed(column="w")),
    Case(clean_up,                  FAILED,     BOTH,      completed()),
    Case(restore_there_and_back,    FAILED,     BOTH,      completed()),
    Case(update_other_of_the_left,  FAILED,     STABLE,    completed()),
    Case(update_other_of_the_left,  FAILED,     ADDRESSES, completed(calls=(21, 22))),
    Case(update_input_of_the_left,  FAILED,     BOTH,      completed(calls=(20 + STEP, 21 + STEP))),
    Case(rewrite_and_update_target, FAILED,     BOTH,      completed(foreign={**FOREIGN_VALUES, 26: -26}, uncalled=(26,))),
)

STALE: tuple[Case, ...] = (
    # concurrent change             when        row ids    outdated rows, and calls
    Case(append_with_values,        FINISHED,   BOTH,      OutdatedValues(foreign=dict.fromkeys(NEW, -1))),
    Case(APPEND_AND_UPDATE,         FINISHED,   STABLE,
         OutdatedValues(stale=3, pending=2, plain=NEW, calls=UPDATED_CALLS)),
    Case(APPEND_AND_UPDATE,         FINISHED,   ADDRESSES,
         OutdatedValues(stale=3, unverified=3, pending=2, plain=NEW, calls=UPDATED_CALLS)),
    Case(NO_INPUT,                  FINISHED,   BOTH,      OutdatedValues()),
    Case(compact,                   FINISHED,   BOTH,      OutdatedValues()),
    Case(restore_there_and_back,    FINISHED,   BOTH,      OutdatedValues()),
    Case(update_other,              FINISHED,   STABLE,    OutdatedValues(pending=1)),
    Case(our_update_of_other,       FINISHED,   STABLE,    OutdatedValues(pending=1)),
    Case(update_other,              FINISHED,   ADDRESSES,
         OutdatedValues(stale=4, unverified=4, pending=1, plain=(10,), calls=(5, 6, 25, 35))),
    Case(our_update_of_other,       FINISHED,   ADDRESSES,
         OutdatedValues(stale=4, unverified=4, pending=1, plain=(10,), calls=(5, 6, 25, 35))),
    Case(UPDATE_OTHER_AND_COMPACT,  FINISHED,   STABLE,    OutdatedValues(pending=1)),
    Case(UPDATE_OTHER_AND_COMPACT,  FINISHED,   ADDRESSES,
         OutdatedValues(stale=4, unverified=4, pending=1, plain=(10,), calls=(5, 6, 25, 35))),
    Case(update_input,              FINISHED,   STABLE,    OutdatedValues(stale=3, calls=UPDATED_CALLS)),
    Case(update_input,              FINISHED,   ADDRESSES, OutdatedValues(stale=3, unverified=3, calls=UPDATED_CALLS)),
    Case(our_update_of_input,       FINISHED,   STABLE,    OutdatedValues(stale=3, calls=UPDATED_CALLS)),
    Case(our_update_of_input,       FINISHED,   ADDRESSES, OutdatedValues(stale=3, unverified=3, calls=UPDATED_CALLS)),
    Case(update_input_and_unset_target, FINISHED, BOTH,    OutdatedValues(pending=1, plain=(7 + STEP,))),
    Case(rewrite_input,             FINISHED,   BOTH,      OutdatedValues(stale=2, pending=3, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      FINISHED,   BOTH,      OutdatedValues(stale=2, pending=3, calls=REWRITTEN_CALLS)),
    Case(rewrite_input_as_it_was,   FINISHED,   BOTH,      OutdatedValues(pending=4)),
    Case(rewrite_input_of_null,     FINISHED,   BOTH,
         OutdatedValues(stale=2, pending=1, plain=(3 + STEP,), result_stale=1, calls=(10,))),
    Case(REWRITE_COMPACT_AND_UPDATE, FINISHED,  STABLE,
         OutdatedValues(stale=3, pending=3, calls=(5 + STEP, 15 + STEP, 35 + STEP))),
    Case(REWRITE_COMPACT_AND_UPDATE, FINISHED,  ADDRESSES,
         OutdatedValues(stale=3, unverified=1, pending=3, calls=(5 + STEP, 15 + STEP, 35 + STEP))),
    # A value of another writer is up to date until the inputs change; old results of NULL rows are kept
    Case(rewrite_target,            FINISHED,   BOTH,      OutdatedValues(pending=3, foreign=FOREIGN_VALUES)),
    Case(rewrite_target_with_null,  FINISHED,   BOTH,      OutdatedValues(pending=6)),
    # A change whose history was cleaned up costs the rows of its fragments
    Case(CHANGE_AND_CLEAN_UP,       FINISHED,   BOTH,      OutdatedValues()),
    Case(REWRITE_ONE_AND_CLEAN_UP,  FINISHED,   BOTH,
         OutdatedValues(stale=10, unverified=10, pending=1, plain=(3,), result_stale=9, calls=(0, 1, 2, 4, 6, 7, 8, 9, 5 + STEP))),
)
# fmt: on


def case_of(table: tuple[Case, ...], act: Act, moment: Moment, *, stable: bool) -> Case:
    """Returns the row for a job or a write without options."""
    (case,) = (
        case
        for case in table
        if case.act is act
        and moment in case.moments.split()
        and stable in case.stable
        and not case.options
    )
    return case
