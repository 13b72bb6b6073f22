"""The table of conflicts: what becomes of a job, and of a DataFrame write, beside each kind of
concurrent commit, at each moment.

A table has the ids 0 to 39, ten in each of four fragments, the input `x`, which is the id, `y`, and
the target `v`. A row of the table of conflicts says what is not as it would be without the
concurrent writer: counters that it does not name are 0, a value that it does not name is that of
the row's input at the end, and each row of the snapshot is computed once.
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
"""When a concurrent writer acts.

`before`: the job has computed some rows, or the tasks of a write all of them, and nothing is
committed. `between`: the job has committed the first two of four fragments, and works on the third.
`staged`: it has finished the files of the first three, and committed nothing. `slipped`: the
committer has looked at the latest version, and is about to commit all fragments. `adding`: it is
about to add the column, which is new. `failed`: a job has failed, of whose four fragments one lacks
a batch, and the others are committed. `finished`: a job has filled the column.
"""

Column = Literal["new", "ours", "theirs"]
"""The target of a write: not there, of an earlier write with its values, or added by another
writer, and NULL.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What is there when a job or a write has ended well.

    Attributes:
        calls: Calls of the UDF beside one for each row of the snapshot, by `x`.
        uncalled: The `x` of rows of the snapshot for which there was no call, as their input was
            another one before.
        null: Ids of rows without a value. The next job calls for them, and for no others.
        old: Ids of rows that have what they had before the write.
        given: Values of others, by id, which stay.
        column: Name of the target at the end.
        next: What the next job is refused with, as a regular expression; empty where it is not.
        fragments_gone: Fragments that the result of a write says are gone; None where that does not
            matter.
        counters: Counters of the result.
    """

    calls: tuple[int, ...] = ()
    uncalled: tuple[int, ...] = ()
    null: tuple[int, ...] = ()
    old: tuple[int, ...] = ()
    given: Mapping[int, int] = field(default_factory=dict)
    column: str = "v"
    next: str = ""
    fragments_gone: tuple[int, ...] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What is raised, where nothing is committed.

    Attributes:
        error: Its type.
        said: A regular expression that its message has.
        fragments: Fragments that it names; None where they do not matter.
        dated: Whether it says which version was in the way, and when it was made.
    """

    error: type[LanceSparkError]
    said: str
    fragments: tuple[int, ...] | None = None
    dated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfDate:
    """What is out of date when another writer has come after a finished job.

    Attributes:
        stale: Rows with a value that is out of date, as the plan says.
        pending: Rows without a value, as the plan says.
        plain: Calls of a job that selects what has no value, by `x`.
        left: Rows out of date that its result says; None where these are the same as before.
        calls: Calls of a job with `stale=True` after it, by `x`.
        unverified: How many rows of `stale` may be up to date, as the plan says.
        given: Values of the other writer that stay, by id.
    """

    stale: int = 0
    unverified: int = 0
    pending: int = 0
    plain: tuple[int, ...] = ()
    left: int | None = None
    calls: tuple[int, ...] = ()
    given: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table.

    Attributes:
        act: What the concurrent writer does.
        moments: When.
        stable: Whether the table has stable row ids.
        expected: What becomes of the job or of the write.
        options: Options of the job or the write.
        columns: Targets of a write for which this holds.
    """

    act: Act
    moments: str
    stable: tuple[bool, ...]
    expected: Done | Refused | OutOfDate
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: str = "new ours theirs"

    @property
    def name(self) -> str:
        """The operation and the options, as ids of tests have them."""
        return "-".join([name_of(self.act), *(f"{name}={value}" for name, value in self.options.items())])


def done(*, carried: int = 0, recomputed: int = 0, nulled: int = 0, gone: int = 0, new: int = 0, **more: Any) -> Done:
    """Returns what is there at the end, with the counters by the names that results have for them."""
    names = ("rows_carried", "rows_recomputed", "rows_nulled", "rows_gone", "new_rows")
    return Done(counters=dict(zip(names, (carried, recomputed, nulled, gone, new), strict=True)), **more)


def variations(table: tuple[Case, ...]) -> list[object]:
    """Returns each row of a table of one moment, with each kind of row ids, as parameters of a
    test.
    """
    return [
        pytest.param(case, stable, id=f"{case.name}-{'stable' if stable else 'addresses'}")
        for case in table
        for stable in case.stable
    ]


def refused(said: str, error: type[LanceSparkError] = CommitImpossibleError, **more: Any) -> Refused:
    return Refused(error=error, said=said, **more)


def conflict(said: str, **more: Any) -> Refused:
    """Returns what is raised where the same may be tried again."""
    return Refused(error=CommitConflictError, said=said, **more)


STABLE, ADDRESSES, BOTH = (True,), (False,), (True, False)
NEW = (1000, 1001)
"""Rows that `append` and `insert_only` bring."""
MOVED = (5, 6, 10, 25, 35)
"""Rows that `update_other` moves."""
UPDATED, UPDATED_CALLS = (5, 25, 35), (5 + STEP, 25 + STEP, 35 + STEP)
"""Rows whose input `update_input` changes, and what it is then."""
REWRITTEN, REWRITTEN_CALLS = (5, 35), (5 + STEP, 35 + STEP)
"""The same of `rewrite_input`; it writes two others too, as they are."""
GIVEN = {5: -5, 35: -35}
"""What `rewrite_target` gives."""
ALL = tuple(range(ROWS))
CAST_CALLS = (*(x for x in ALL if x not in REWRITTEN), *REWRITTEN_CALLS)
"""A call for each row with the input that it has after `rewrite_input`."""

ANY = "before between staged slipped"
AT_ONCE = "before staged slipped"
"""Nothing is committed when the concurrent writer acts."""
LOOKED_AT = "before staged"
"""Nothing is committed, and the committer sees what was done."""
NULL_STALE = {"on_stale": "null"}
EVERY_ROW = {"where": "1=1"}
GONE_INPUT = r"input columns are gone: 'x' \(cast or made anew: 'x'\) - "

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
    # what another writer does      when        row ids    what becomes of a job
    # New rows, other columns, settings
    Case(append,                    ANY,        BOTH,      done(new=2, null=NEW)),
    Case(insert_only,               ANY,        BOTH,      done(new=2, null=NEW)),
    Case(change_columns,            ANY,        BOTH,      done()),
    Case(change_settings,           ANY,        BOTH,      done()),
    Case(index_target,              ANY,        BOTH,      done()),
    Case(rewrite_other,             ANY,        BOTH,      done()),
    Case(backfill_another,          ANY,        BOTH,      done()),
    Case(rename_target,             LOOKED_AT,  BOTH,      done(carried=40, column="w")),
    Case(rename_target,             "between",  BOTH,      done(carried=20, column="w")),
    Case(rename_target,             "slipped",  BOTH,      done(column="w")),
    # Deletions and restores
    Case(delete_rows,               ANY,        BOTH,      done(gone=4)),
    Case(our_delete,                ANY,        BOTH,      done(gone=4)),
    Case(delete_fragment,           ANY,        BOTH,      done(gone=10)),
    Case(our_delete_of_a_fragment,  ANY,        BOTH,      done(gone=10)),
    Case(delete_and_add_column,     ANY,        BOTH,      done(gone=5)),
    Case(restore_kept,              ANY,        BOTH,      done()),
    Case(restore_there_and_back,    ANY,        BOTH,      done()),
    Case(restore_unfilled,          AT_ONCE,    BOTH,      done()),
    Case(restore_unfilled,          "between",  BOTH,      done(carried=20)),
    # Updates, which move rows
    Case(update_other,              AT_ONCE,    STABLE,    done(carried=5)),
    Case(our_update_of_other,       AT_ONCE,    STABLE,    done(carried=5)),
    Case(update_other,              "between",  STABLE,    done(carried=3)),
    Case(our_update_of_other,       "between",  STABLE,    done(carried=3)),
    Case(update_other,              ANY,        ADDRESSES, done(recomputed=5, calls=MOVED)),
    Case(our_update_of_other,       ANY,        ADDRESSES, done(recomputed=5, calls=MOVED)),
    Case(update_input,              ANY,        BOTH,      done(recomputed=3, calls=UPDATED_CALLS)),
    Case(our_update_of_input,       ANY,        BOTH,      done(recomputed=3, calls=UPDATED_CALLS)),
    Case(update_input,              ANY,        STABLE,    done(nulled=3, null=UPDATED), NULL_STALE),
    Case(our_update_of_input,       ANY,        STABLE,    done(nulled=3, null=UPDATED), NULL_STALE),
    Case(update_input,              ANY,        ADDRESSES, done(recomputed=3, calls=UPDATED_CALLS), NULL_STALE),
    Case(our_update_of_input,       ANY,        ADDRESSES, done(recomputed=3, calls=UPDATED_CALLS), NULL_STALE),
    Case(update_input,              ANY,        STABLE,
         done(recomputed=3, calls=UPDATED_CALLS), {"where": "x < 1000"}),
    Case(our_update_of_input,       ANY,        STABLE,
         done(recomputed=3, calls=UPDATED_CALLS), {"where": "x < 1000"}),
    Case(update_input_and_target,   ANY,        BOTH,      done(recomputed=3, calls=UPDATED_CALLS)),
    Case(update_input_and_delete,   ANY,        BOTH,      done(recomputed=1, gone=3, calls=(25 + STEP,))),
    Case(UPDATE_TWICE,              ANY,        BOTH,
         done(recomputed=3, calls=tuple(i + 2 * STEP for i in UPDATED))),
    Case(upsert,                    AT_ONCE,    STABLE,
         done(carried=2, recomputed=2, new=1, calls=(5 + STEP, 25 + STEP), null=(1000,))),
    Case(upsert,                    "between",  STABLE,
         done(carried=1, recomputed=2, new=1, calls=(5 + STEP, 25 + STEP), null=(1000,))),
    Case(upsert,                    ANY,        ADDRESSES,
         done(recomputed=5, new=1, calls=(5 + STEP, 6, 25 + STEP, 36, 1000))),
    # Compactions
    Case(compact,                   AT_ONCE,    BOTH,      done(carried=40)),
    Case(compact,                   "between",  BOTH,      done(carried=20)),
    Case(compact_deferred,          AT_ONCE,    ADDRESSES, done(carried=40)),
    Case(compact_deferred,          "between",  ADDRESSES, done(carried=20)),
    Case(compact_in_rounds,         AT_ONCE,    BOTH,      done(carried=33, gone=7)),
    Case(compact_in_rounds,         "between",  BOTH,      done(carried=16, gone=7)),
    Case(DELETE_AND_COMPACT,        AT_ONCE,    BOTH,      done(carried=36, gone=4)),
    Case(DELETE_AND_COMPACT,        "between",  BOTH,      done(carried=18, gone=4)),
    Case(COMPACT_AND_DELETE,        AT_ONCE,    BOTH,      done(carried=36, gone=4)),
    Case(COMPACT_AND_DELETE,        "between",  BOTH,      done(carried=18, gone=4)),
    Case(APPEND_AND_COMPACT,        AT_ONCE,    BOTH,      done(carried=40, new=2, null=NEW)),
    Case(APPEND_AND_COMPACT,        "between",  BOTH,      done(carried=20, new=2, null=NEW)),
    Case(compact_and_update,        AT_ONCE,    STABLE,    done(carried=37, recomputed=3, calls=UPDATED_CALLS)),
    Case(compact_and_update,        "between",  STABLE,    done(carried=19, recomputed=3, calls=UPDATED_CALLS)),
    Case(compact_and_update,        AT_ONCE,    ADDRESSES, done(carried=35, calls=(6, 10, *UPDATED_CALLS))),
    Case(compact_and_update,        "between",  ADDRESSES,
         done(carried=18, recomputed=5, calls=(6, 10, *UPDATED_CALLS))),
    # Inputs that are written in place
    Case(rewrite_input,             LOOKED_AT,  BOTH,      done(carried=18, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      LOOKED_AT,  BOTH,      done(carried=18, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_input,             "between",  BOTH,      done(carried=9, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      "between",  BOTH,      done(carried=9, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_input,             "slipped",  BOTH,      done(recomputed=2, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      "slipped",  BOTH,      done(recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_input,             LOOKED_AT,  BOTH,      done(carried=18, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(our_rewrite_of_input,      LOOKED_AT,  BOTH,      done(carried=18, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(rewrite_input,             "between",  BOTH,      done(carried=9, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(our_rewrite_of_input,      "between",  BOTH,      done(carried=9, nulled=2, null=REWRITTEN), NULL_STALE),
    Case(rewrite_input,             "slipped",  BOTH,      done(nulled=2, null=REWRITTEN), NULL_STALE),
    Case(our_rewrite_of_input,      "slipped",  BOTH,      done(nulled=2, null=REWRITTEN), NULL_STALE),
    Case(rewrite_input_as_it_was,   LOOKED_AT,  BOTH,      done(carried=30)),
    Case(rewrite_input_as_it_was,   "between",  BOTH,      done(carried=20)),
    Case(rewrite_input_as_it_was,   "slipped",  BOTH,      done()),
    Case(rewrite_input_like_another, LOOKED_AT, BOTH,      done(carried=18, recomputed=2, calls=(7, 7))),
    Case(rewrite_input_like_another, "between", BOTH,      done(carried=9, recomputed=2, calls=(7, 7))),
    Case(rewrite_input_like_another, "slipped", BOTH,      done(recomputed=2, calls=(7, 7))),
    Case(REWRITE_UPDATE_AND_COMPACT, AT_ONCE,   STABLE,    done(carried=38, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(REWRITE_UPDATE_AND_COMPACT, "between", STABLE,    done(carried=21, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(REWRITE_UPDATE_AND_COMPACT, AT_ONCE,   ADDRESSES, done(carried=35, calls=(6, 10, 25, *REWRITTEN_CALLS))),
    Case(REWRITE_UPDATE_AND_COMPACT, "between", ADDRESSES,
         done(carried=19, recomputed=5, calls=(6, 10, 25, *REWRITTEN_CALLS))),
    Case(COMPACT_AND_REWRITE,       AT_ONCE,    BOTH,      done(carried=38, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(COMPACT_AND_REWRITE,       "between",  BOTH,      done(carried=22, recomputed=2, calls=REWRITTEN_CALLS)),
    Case(rewrite_and_compact_the_first, AT_ONCE, BOTH,     done(carried=19, recomputed=1, calls=(5 + STEP,))),
    Case(rewrite_and_compact_the_first, "between", BOTH,   done(carried=1, recomputed=1, calls=(5 + STEP,))),
    Case(compact_the_first_and_rewrite, AT_ONCE, BOTH,     done(carried=19, recomputed=1, calls=(5 + STEP,))),
    Case(compact_the_first_and_rewrite, "between", BOTH,   done(carried=3, recomputed=1, calls=(5 + STEP,))),
    # Inputs that are cast or dropped: what was computed of them counts as out of date, or stays
    Case(cast_input,                AT_ONCE,    BOTH,      done(calls=ALL, next=GONE_INPUT)),
    Case(cast_input,                "between",  BOTH,      done(recomputed=20, calls=ALL, next=GONE_INPUT)),
    Case(rewrite_input_and_cast,    AT_ONCE,    BOTH,      done(calls=CAST_CALLS, next=GONE_INPUT)),
    Case(rewrite_input_and_cast,    "between",  BOTH,      done(recomputed=20, calls=CAST_CALLS, next=GONE_INPUT)),
    # The target, written in place: values of others stay where no filter asked for their rows
    Case(rewrite_target,            AT_ONCE,    BOTH,      done(carried=18, given=GIVEN)),
    Case(rewrite_target,            "between",  BOTH,      done(carried=10, given=GIVEN)),
    Case(rewrite_target,            ANY,        BOTH,      done(carried=20), EVERY_ROW),
    Case(rewrite_target_with_null,  AT_ONCE,    BOTH,      done(carried=20)),
    Case(rewrite_target_with_null,  "between",  BOTH,      done(carried=13)),
    Case(REWRITE_TARGET_AND_COMPACT, AT_ONCE,   BOTH,      done(carried=38, given=GIVEN)),
    Case(REWRITE_TARGET_AND_COMPACT, "between", STABLE,    done(carried=20, given=GIVEN)),
    Case(REWRITE_TARGET_AND_COMPACT, "between", ADDRESSES, done(carried=10, given=GIVEN)),
    # Cleanups: where history is gone, what moved or may have changed is computed again
    Case(clean_up,                  ANY,        BOTH,      done()),
    Case(clean_up_all,              "before between", BOTH, done()),
    Case(clean_up_all,              "staged",   BOTH,      done(carried=30)),
    Case(clean_up_ours,             ANY,        BOTH,      done()),
    Case(COMPACT_AND_CLEAN_UP,      "before",   BOTH,      done(calls=ALL[:10])),
    Case(COMPACT_AND_CLEAN_UP,      "between",  BOTH,      done(recomputed=40, calls=ALL[:30])),
    Case(COMPACT_AND_CLEAN_UP,      "staged slipped", BOTH, done(calls=ALL)),
    Case(COMPACT_AND_CLEAN_UP_ALL,  "before",   BOTH,      done(calls=ALL[:10])),
    Case(COMPACT_AND_CLEAN_UP_ALL,  "between",  BOTH,      done(recomputed=40, calls=ALL[:30])),
    Case(COMPACT_AND_CLEAN_UP_ALL,  "staged slipped", BOTH, done(calls=ALL)),
    Case(UPDATE_INPUT_AND_CLEAN_UP, ANY,        BOTH,      done(recomputed=3, calls=UPDATED_CALLS)),
    Case(UPDATE_COMPACT_AND_CLEAN_UP, "before", BOTH,
         done(calls=(*range(5), *range(6, 10), *UPDATED_CALLS), uncalled=(25, 35))),
    Case(UPDATE_COMPACT_AND_CLEAN_UP, "between", BOTH,
         done(recomputed=40, calls=(*(x for x in ALL[:30] if x not in UPDATED), *UPDATED_CALLS), uncalled=(35,))),
    Case(UPDATE_COMPACT_AND_CLEAN_UP, "staged slipped", BOTH,
         done(calls=(*(x for x in ALL if x not in UPDATED), *UPDATED_CALLS))),
    Case(UPDATE_OTHER_AND_CLEAN_UP, ANY,        BOTH,      done(recomputed=5, calls=MOVED)),
    # What cannot be applied any more
    Case(drop_target,               ANY,        BOTH,      refused(r"Project|drop")),
    Case(drop_and_reuse_id,         ANY,        BOTH,      refused(r"Project|drop")),
    Case(cast_target,               ANY,        BOTH,      refused(r"type|cast")),
    Case(overwrite,                 ANY,        BOTH,      refused(r"Overwrite|overwritten")),
    Case(restore_past,              ANY,        BOTH,      refused(r"Restore|restored")),
    Case(cast_input_and_rename,     ANY,        BOTH,
         refused(r"input column 'x'.*another name.*run the backfill again")),
)

ALWAYS = "before slipped adding"
SEEN = "before adding"
"""The committer sees what was done before it commits values."""
EXISTING, TOKEN = "ours theirs", "new ours"
ERROR = {"on_stale": "error"}
TWO_INPUTS = {"input_columns": "x,y"}
SMALL = {"carry_over_max_bytes": "16"}
CLEANED = r"clean.*(again|tag)"
TAKEN_BACK = rf"(?s)(?=.*taken back).*{CLEANED}"
UNKNOWN = r"whether it was made anew is not known any more"

WRITES: tuple[Case, ...] = (
    # what another writer does      when        row ids    what becomes of a DataFrame write
    # New rows, other columns, settings
    Case(append,                    SEEN,       BOTH,      done(new=2, null=NEW)),
    Case(append,                    "slipped",  BOTH,      done(null=NEW)),
    Case(insert_only,               SEEN,       BOTH,      done(new=2, null=NEW)),
    Case(insert_only,               "slipped",  BOTH,      done(null=NEW)),
    Case(change_columns,            ALWAYS,     BOTH,      done()),
    Case(change_settings,           ALWAYS,     BOTH,      done()),
    Case(index_target,              "before slipped", BOTH, done(), columns=EXISTING),
    Case(rewrite_other,             ALWAYS,     BOTH,      done()),
    Case(rewrite_other,             ALWAYS,     BOTH,      done(carried=18, nulled=2, null=REWRITTEN), TWO_INPUTS),
    Case(backfill_another,          ALWAYS,     BOTH,      done()),
    Case(rename_target,             "before",   BOTH,      conflict("renamed to 'w'"), columns=EXISTING),
    Case(rename_target,             "slipped",  BOTH,      done(column="w")),
    Case(add_target,                SEEN,       BOTH,      conflict("by a concurrent writer"), columns="new"),
    Case(add_target_with_values,    SEEN,       BOTH,      conflict("by a concurrent writer"), columns="new"),
    # Deletions and restores
    Case(delete_rows,               SEEN,       BOTH,      done(gone=4)),
    Case(our_delete,                SEEN,       BOTH,      done(gone=4)),
    Case(delete_rows,               "slipped",  BOTH,      done()),
    Case(our_delete,                "slipped",  BOTH,      done()),
    Case(delete_fragment,           ALWAYS,     BOTH,      done(gone=10, fragments_gone=(3,))),
    Case(our_delete_of_a_fragment,  ALWAYS,     BOTH,      done(gone=10, fragments_gone=(3,))),
    Case(delete_and_add_column,     ALWAYS,     BOTH,      done(gone=5)),
    Case(restore_kept,              ALWAYS,     BOTH,      done()),
    Case(restore_there_and_back,    ALWAYS,     BOTH,      done(), columns=TOKEN),
    Case(restore_there_and_back,    "before slipped", BOTH,
         refused("it may be another one .Restore"), columns="theirs"),
    # Updates, which move rows
    Case(update_other,              ALWAYS,     STABLE,    done(carried=5)),
    Case(our_update_of_other,       ALWAYS,     STABLE,    done(carried=5)),
    Case(update_other,              ALWAYS,     ADDRESSES, done(gone=5, new=5, old=MOVED)),
    Case(our_update_of_other,       ALWAYS,     ADDRESSES, done(gone=5, new=5, old=MOVED)),
    Case(update_other,              ALWAYS,     STABLE,    done(carried=5), ERROR),
    Case(our_update_of_other,       ALWAYS,     STABLE,    done(carried=5), ERROR),
    Case(update_other,              ALWAYS,     STABLE,    done(nulled=5, null=MOVED), TWO_INPUTS),
    Case(our_update_of_other,       ALWAYS,     STABLE,    done(nulled=5, null=MOVED), TWO_INPUTS),
    Case(update_input,              ALWAYS,     STABLE,    done(nulled=3, null=UPDATED)),
    Case(our_update_of_input,       ALWAYS,     STABLE,    done(nulled=3, null=UPDATED)),
    Case(update_input,              ALWAYS,     ADDRESSES, done(gone=3, new=3, old=UPDATED)),
    Case(our_update_of_input,       ALWAYS,     ADDRESSES, done(gone=3, new=3, old=UPDATED)),
    Case(update_input,              ALWAYS,     STABLE,    conflict("input", fragments=(4,)), ERROR),
    Case(update_input_and_target,   "before slipped", STABLE,
         done(nulled=1, gone=2, null=(25,), given={5: -777, 35: -777}), columns=EXISTING),
    Case(update_input_and_target,   "before slipped", ADDRESSES,
         done(gone=3, new=3, old=(25,), given={5: -777, 35: -777}), columns=EXISTING),
    Case(update_input_and_delete,   ALWAYS,     STABLE,    done(nulled=1, gone=3, null=(25,))),
    Case(update_input_and_delete,   ALWAYS,     ADDRESSES, done(gone=4, new=1, old=(25,))),
    Case(UPDATE_TWICE,              ALWAYS,     STABLE,    done(nulled=3, null=UPDATED)),
    Case(UPDATE_TWICE,              ALWAYS,     ADDRESSES, done(gone=3, new=3, old=UPDATED)),
    Case(upsert,                    ALWAYS,     STABLE,    done(carried=2, nulled=2, new=1, null=(5, 25, 1000))),
    Case(upsert,                    ALWAYS,     ADDRESSES, done(gone=4, new=5, old=(5, 6, 25, 36), null=(1000,))),
    # Compactions
    Case(compact,                   ALWAYS,     BOTH,      done(carried=40)),
    Case(compact,                   "before slipped", BOTH,
         conflict("carry_over_max_bytes allows 16.* write again", fragments=(4,)), SMALL),
    Case(compact_deferred,          ALWAYS,     ADDRESSES, done(carried=40)),
    Case(compact_in_rounds,         ALWAYS,     BOTH,      done(carried=33, gone=7)),
    Case(DELETE_AND_COMPACT,        ALWAYS,     BOTH,      done(carried=36, gone=4)),
    Case(COMPACT_AND_DELETE,        ALWAYS,     BOTH,      done(carried=36, gone=4)),
    Case(APPEND_AND_COMPACT,        ALWAYS,     BOTH,      done(carried=40, new=2, null=NEW)),
    Case(compact_and_update,        ALWAYS,     STABLE,    done(carried=37, nulled=3, null=UPDATED)),
    Case(compact_and_update,        ALWAYS,     ADDRESSES, done(carried=35, gone=5, new=5, old=MOVED)),
    # Inputs that are written in place, cast or dropped
    Case(rewrite_input,             ALWAYS,     BOTH,      done(carried=18, nulled=2, null=REWRITTEN)),
    Case(our_rewrite_of_input,      ALWAYS,     BOTH,      done(carried=18, nulled=2, null=REWRITTEN)),
    Case(rewrite_input,             "before",   BOTH,      conflict("input", fragments=(0,)), ERROR),
    Case(our_rewrite_of_input,      "before",   BOTH,      conflict("input", fragments=(0,)), ERROR),
    Case(rewrite_input,             "slipped",  BOTH,      conflict("input.*taken back", fragments=(0,)), ERROR),
    Case(our_rewrite_of_input,      "slipped",  BOTH,      conflict("input.*taken back", fragments=(0,)), ERROR),
    Case(rewrite_input_as_it_was,   ALWAYS,     BOTH,      done(carried=30)),
    Case(rewrite_input_like_another, ALWAYS,    BOTH,      done(carried=18, nulled=2, null=REWRITTEN)),
    Case(REWRITE_AND_COMPACT,       ALWAYS,     BOTH,      done(carried=38, nulled=2, null=REWRITTEN)),
    Case(REWRITE_UPDATE_AND_COMPACT, ALWAYS,    STABLE,    done(carried=38, nulled=2, null=REWRITTEN)),
    Case(REWRITE_UPDATE_AND_COMPACT, ALWAYS,    ADDRESSES, done(carried=35, gone=5, new=5, old=MOVED)),
    Case(COMPACT_AND_REWRITE,       ALWAYS,     BOTH,      done(carried=38, nulled=2, null=REWRITTEN)),
    Case(rewrite_and_compact_the_first, ALWAYS, BOTH,      done(carried=19, nulled=1, null=(5,))),
    Case(compact_the_first_and_rewrite, ALWAYS, BOTH,      done(carried=19, nulled=1, null=(5,))),
    Case(cast_input,                ALWAYS,     BOTH,      done(nulled=40, null=ALL)),
    Case(rewrite_input_and_cast,    ALWAYS,     BOTH,      done(nulled=40, null=ALL)),
    Case(cast_input_and_rename,     ALWAYS,     BOTH,      refused("input column 'x'.*another name")),
    Case(drop_input,                ALWAYS,     BOTH,      done()),
    # The target, written in place: what is written wins
    Case(rewrite_target,            "before slipped", BOTH, done(carried=20), columns=EXISTING),
    Case(rewrite_target_with_null,  "before slipped", BOTH, done(carried=20), columns=EXISTING),
    Case(REWRITE_TARGET_AND_COMPACT, "before slipped", BOTH, done(carried=40), columns=EXISTING),
    # Cleanups: where history is gone, and rows may have moved, nothing is committed
    Case(clean_up,                  ALWAYS,     BOTH,      done()),
    Case(clean_up_ours,             ALWAYS,     BOTH,      done()),
    Case(DELETE_AND_CLEAN_UP,       "before",   BOTH,      done(gone=4), columns=TOKEN),
    Case(DELETE_AND_CLEAN_UP,       "slipped",  BOTH,      done(), columns=TOKEN),
    Case(APPEND_CHANGE_AND_CLEAN_UP, "before slipped", BOTH, done(null=NEW), columns=TOKEN),
    Case(REWRITE_OTHER_AND_CLEAN_UP, "before slipped", BOTH, done(null=NEW), columns=TOKEN),
    Case(COMPACT_AND_CLEAN_UP,      "before slipped", BOTH, refused(CLEANED, dated=False), columns=TOKEN),
    Case(UPDATE_OTHER_AND_CLEAN_UP, "before",   BOTH,      refused(CLEANED, dated=False), columns=TOKEN),
    Case(UPDATE_OTHER_AND_CLEAN_UP, "slipped",  BOTH,      conflict(TAKEN_BACK), columns=TOKEN),
    Case(UPDATE_INPUT_AND_CLEAN_UP, "before",   BOTH,      refused(CLEANED, dated=False), columns=TOKEN),
    Case(UPDATE_INPUT_AND_CLEAN_UP, "slipped",  BOTH,      conflict(TAKEN_BACK), columns=TOKEN),
    Case(REWRITE_AND_CLEAN_UP,      "before",   BOTH,      refused(CLEANED, dated=False), columns=TOKEN),
    Case(REWRITE_AND_CLEAN_UP,      "slipped",  BOTH,      conflict(TAKEN_BACK), columns=TOKEN),
    Case(DELETE_AND_CLEAN_UP,       "before",   BOTH,      refused(UNKNOWN, dated=False), columns="theirs"),
    Case(DELETE_AND_CLEAN_UP,       "slipped",  BOTH,      conflict(UNKNOWN), columns="theirs"),
    # What cannot be applied any more
    Case(drop_target,               "before slipped", BOTH,
         refused(r"column 'v': it was dropped .Project"), columns=EXISTING),
    Case(drop_and_reuse_id,         "before slipped", BOTH, refused(r"column 'v'.*Project"), columns=EXISTING),
    Case(cast_target,               "before slipped", BOTH,
         refused(r"its type changed from int64 to int32"), columns=EXISTING),
    Case(overwrite,                 ALWAYS,     BOTH,      refused(r"Overwrite at version")),
    Case(restore_past,              "before slipped", BOTH, refused(r"Restore at version"), columns=EXISTING),
    Case(restore_past,              SEEN,       BOTH,      done(), columns="new"),
)

FAILED, FINISHED = "failed", "finished"
SUCCESSORS: tuple[Case, ...] = (
    # what another writer does      when        row ids    what the next job calls for, beside what is left
    Case(compact,                   FAILED,     BOTH,      done()),
    Case(compact_deferred,          FAILED,     ADDRESSES, done()),
    Case(COMPACT_AGAIN,             FAILED,     BOTH,      done()),
    Case(delete_compact_and_delete, FAILED,     BOTH,      done(uncalled=(28,))),
    Case(APPEND_AND_COMPACT,        FAILED,     BOTH,      done(calls=NEW)),
    Case(change_columns,            FAILED,     BOTH,      done()),
    Case(rename_target,             FAILED,     BOTH,      done(column="w")),
    Case(clean_up,                  FAILED,     BOTH,      done()),
    Case(restore_there_and_back,    FAILED,     BOTH,      done()),
    Case(update_other_of_the_left,  FAILED,     STABLE,    done()),
    Case(update_other_of_the_left,  FAILED,     ADDRESSES, done(calls=(21, 22))),
    Case(update_input_of_the_left,  FAILED,     BOTH,      done(calls=(20 + STEP, 21 + STEP))),
    Case(rewrite_and_update_target, FAILED,     BOTH,      done(given={**GIVEN, 26: -26}, uncalled=(26,))),
)

STALE: tuple[Case, ...] = (
    # what another writer does      when        row ids    what is out of date, and what is called for
    Case(append_with_values,        FINISHED,   BOTH,      OutOfDate(given=dict.fromkeys(NEW, -1))),
    Case(APPEND_AND_UPDATE,         FINISHED,   STABLE,
         OutOfDate(stale=3, pending=2, plain=NEW, calls=UPDATED_CALLS)),
    Case(APPEND_AND_UPDATE,         FINISHED,   ADDRESSES,
         OutOfDate(stale=3, unverified=3, pending=2, plain=NEW, calls=UPDATED_CALLS)),
    Case(NO_INPUT,                  FINISHED,   BOTH,      OutOfDate()),
    Case(compact,                   FINISHED,   BOTH,      OutOfDate()),
    Case(restore_there_and_back,    FINISHED,   BOTH,      OutOfDate()),
    Case(update_other,              FINISHED,   STABLE,    OutOfDate(pending=1)),
    Case(our_update_of_other,       FINISHED,   STABLE,    OutOfDate(pending=1)),
    Case(update_other,              FINISHED,   ADDRESSES,
         OutOfDate(stale=4, unverified=4, pending=1, plain=(10,), calls=(5, 6, 25, 35))),
    Case(our_update_of_other,       FINISHED,   ADDRESSES,
         OutOfDate(stale=4, unverified=4, pending=1, plain=(10,), calls=(5, 6, 25, 35))),
    Case(UPDATE_OTHER_AND_COMPACT,  FINISHED,   STABLE,    OutOfDate(pending=1)),
    Case(UPDATE_OTHER_AND_COMPACT,  FINISHED,   ADDRESSES,
         OutOfDate(stale=4, unverified=4, pending=1, plain=(10,), calls=(5, 6, 25, 35))),
    Case(update_input,              FINISHED,   STABLE,    OutOfDate(stale=3, calls=UPDATED_CALLS)),
    Case(update_input,              FINISHED,   ADDRESSES, OutOfDate(stale=3, unverified=3, calls=UPDATED_CALLS)),
    Case(our_update_of_input,       FINISHED,   STABLE,    OutOfDate(stale=3, calls=UPDATED_CALLS)),
    Case(our_update_of_input,       FINISHED,   ADDRESSES, OutOfDate(stale=3, unverified=3, calls=UPDATED_CALLS)),
    Case(update_input_and_unset_target, FINISHED, BOTH,    OutOfDate(pending=1, plain=(7 + STEP,))),
    Case(rewrite_input,             FINISHED,   BOTH,      OutOfDate(stale=2, pending=3, calls=REWRITTEN_CALLS)),
    Case(our_rewrite_of_input,      FINISHED,   BOTH,      OutOfDate(stale=2, pending=3, calls=REWRITTEN_CALLS)),
    Case(rewrite_input_as_it_was,   FINISHED,   BOTH,      OutOfDate(pending=4)),
    Case(rewrite_input_of_null,     FINISHED,   BOTH,
         OutOfDate(stale=2, pending=1, plain=(3 + STEP,), left=1, calls=(10,))),
    Case(REWRITE_COMPACT_AND_UPDATE, FINISHED,  STABLE,
         OutOfDate(stale=3, pending=3, calls=(5 + STEP, 15 + STEP, 35 + STEP))),
    Case(REWRITE_COMPACT_AND_UPDATE, FINISHED,  ADDRESSES,
         OutOfDate(stale=3, unverified=1, pending=3, calls=(5 + STEP, 15 + STEP, 35 + STEP))),
    # A value of another writer is up to date until the inputs change; what the UDF once computed for NULL rows is still there
    Case(rewrite_target,            FINISHED,   BOTH,      OutOfDate(pending=3, given=GIVEN)),
    Case(rewrite_target_with_null,  FINISHED,   BOTH,      OutOfDate(pending=6)),
    # A change whose history was cleaned up costs the rows of its fragments
    Case(CHANGE_AND_CLEAN_UP,       FINISHED,   BOTH,      OutOfDate()),
    Case(REWRITE_ONE_AND_CLEAN_UP,  FINISHED,   BOTH,
         OutOfDate(stale=10, unverified=10, pending=1, plain=(3,), left=9, calls=(0, 1, 2, 4, 6, 7, 8, 9, 5 + STEP))),
)
# fmt: on


def case_of(table: tuple[Case, ...], act: Act, moment: Moment, *, stable: bool) -> Case:
    """Returns the row that says what becomes of a job or a write without options."""
    (case,) = (
        case
        for case in table
        if case.act is act and moment in case.moments.split() and stable in case.stable and not case.options
    )
    return case
