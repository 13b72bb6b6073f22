"""Concurrent writers during a load: their changes survive, and no row keeps a value of a former key.

Writers act between the selection of rows and the join, between the join and the column files, and right before the
commit.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError, BackfillJobResult, Connection, Table
from lance_spark.errors import CommitImpossibleError
from lance_spark.load import source_alignment
from tests.lance_spark.load.loads import (
    Stop,
    around_commits,
    assert_same,
    joins,
    load,
    make_table,
    of_ids,
    stop,
    values,
    write_file,
)

pytestmark = pytest.mark.sample(3, tests=5)

Act = Callable[[], object]

MOMENTS: dict[str, Callable[[Act], AbstractContextManager[Any]]] = {
    "before the join": lambda act: joins(before=act),
    "after the join": lambda act: joins(after=act),
    "before the commit": lambda act: around_commits(before={0: act}),
}

KEYS = [*range(100, 130, 2)]
"""Keys of the source; the table has `k` from 100 to 129, so every second row has a match."""

SOURCE = pa.table(
    {"k": pa.array(KEYS, pa.int64()), "v": pa.array([10 * k for k in KEYS], pa.int64())}
)


def make(db: Connection, *, stable: bool = True, **columns: Any) -> Table:
    data = pa.table(
        {
            "id": pa.array(range(30), pa.int64()),
            "k": pa.array(range(100, 130), pa.int64()),
            **columns,
        }
    )
    return make_table(db, data, stable=stable)


def at(table: Table) -> Any:
    return lance.dataset(table.uri)


def expected(table: Table) -> dict[int, int | None]:
    """Returns the expected value of each row in a new column, from the table's final keys."""
    return {i: 10 * k if k in KEYS else None for i, k in values(table, "k").items()}


def move_key(table: Table, ids: str, key: int) -> None:
    """Updates a key; its row gets another address."""
    at(table).update({"k": str(key)}, where=f"id = {ids}")


def rewrite(table: Table, column: str, cells: dict[int, int | None]) -> None:
    """Writes a column of some rows in place."""
    source = pa.table(
        {"id": pa.array(cells, pa.int64()), column: pa.array(cells.values(), pa.int64())}
    )
    at(table).merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(
        source
    )


def mix(table: Table) -> None:
    """Makes every kind of change to rows and to columns other than the loaded column."""
    move_key(table, "0", 128)  # from one match to another
    move_key(table, "2", 999)  # from a match to none
    move_key(table, "3", 104)  # from no match to a match
    move_key(table, "5", 997)  # from none to none
    rewrite(table, "k", {12: 110, 14: 998, 15: 100, 17: None})
    at(table).delete("id IN (8, 9, 21)")
    at(table).add_columns({"twice": "id * 2"})
    lance.write_dataset(
        pa.table({"id": [50, 51], "k": [102, 5], "twice": [100, 102]}), table.uri, mode="append"
    )


def compact(table: Table) -> None:
    at(table).optimize.compact_files()


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "stable"),
    [*((moment, True) for moment in MOMENTS), ("after the join", False)],
    ids=str,
)
@pytest.mark.parametrize("compacts", [False, True], ids=["as they are", "compacted"])
def test_the_column_is_that_of_the_keys_that_the_rows_have_in_the_end(
    moment: str, stable: bool, compacts: bool, db: Connection
) -> None:
    table = make(db, stable=stable)

    def act() -> None:
        mix(table)
        if compacts:
            compact(table)

    with MOMENTS[moment](act):
        result = load(table, SOURCE, "k", ["v"])
    after = expected(table)
    values_found = values(table)
    added = {i: values_found.pop(i) for i in (50, 51)}
    assert values_found == {i: after[i] for i in values_found} and len(values_found) == 27
    # Rows added during the job do not belong to the job.
    assert added[51] is None and added[50] in (None, 1020)
    assert table.count_rows("twice = id * 2") == 29
    assert (result.status, result.rows_failed) == ("DONE", 0)
    if not compacts:
        assert (result.rows_gone, result.new_rows) == (3, 2)
    if moment != "before the join" and stable:
        assert (result.rows_recomputed, result.rows_nulled) == (2, 2), (
            "of rows 0 and 12, and of rows 2 and 14"
        )
    assert load(table, SOURCE, "k", ["v"]).rows_computed == len(
        [k for k in values(table, "k").values() if k in KEYS]
    )
    assert values(table) == expected(table)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_compaction_carries_all_values_over_and_none_is_looked_up_again(
    moment: str, db: Connection
) -> None:
    table = make(db, v=pa.array([-i for i in range(30)], pa.int64()))
    at(table).delete("id IN (3, 4)")
    with MOMENTS[moment](lambda: compact(table)), joins() as join_calls:
        result = load(table, SOURCE, "k", ["v"])
    assert values(table) == {
        i: 10 * (100 + i) if i % 2 == 0 else -i for i in range(30) if i not in (3, 4)
    }
    assert (result.status, result.rows_recomputed, result.rows_nulled) == ("DONE", 0, 0)
    assert len(table.to_lance().get_fragments()) == 1
    if moment != "before the join":
        assert sum(join_calls.rows[1:]) <= 14, "only what had no match may be looked up again"


def update_another(table: Table) -> None:
    at(table).update({"text": "'u'"}, where="id >= 20")


def clean_up(table: Table) -> None:
    at(table).cleanup_old_versions(older_than=dt.timedelta(0))


MOVES: dict[str, tuple[Callable[[Table], None], ...]] = {
    "update": (update_another,),
    "update, history gone": (update_another, clean_up),
    "compaction, history gone": (compact, clean_up),
    "update, compaction, history gone": (update_another, compact, clean_up),
    "compaction": (compact,),
    "compaction, update": (compact, update_another),
}
QUICK = [
    ("update", False, "joined"),
    ("update, history gone", True, "joined"),
    ("compaction, history gone", True, "joined"),
    ("update, history gone", False, "looked up in order"),
]


@pytest.mark.sample(36)
@pytest.mark.parametrize(
    ("moves", "stable", "way"),
    [
        pytest.param(
            *case, marks=() if case in QUICK else pytest.mark.long, id=", ".join(map(str, case))
        )
        for case in itertools.product(MOVES, [True, False], ["joined", "looked up in order"])
    ],
)
@pytest.mark.parametrize(
    "moment", [pytest.param("before the join", marks=pytest.mark.long), "before the commit"]
)
@pytest.mark.sample(1)
def test_a_row_without_a_match_keeps_its_value_when_concurrent_writers_move_it(
    moment: str,
    moves: str,
    stable: bool,
    way: str,
    db: Connection,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_alignment, "_MOST_READS", float("inf"))
    table = make(
        db, stable=stable, v=pa.array([-i for i in range(30)], pa.int64()), text=["t"] * 30
    )
    source: Any = SOURCE if way == "joined" else write_file(SOURCE, files / "source.parquet")
    assert table.plan_load_columns(source, "k", ["v"]).shuffles == (way == "joined")
    with MOMENTS[moment](lambda: [act(table) for act in MOVES[moves]]):
        result = load(table, source, "k", ["v"])
    assert values(table) == {i: 10 * (100 + i) if i % 2 == 0 else -i for i in range(30)}
    assert (result.status, result.rows_nulled, result.rows_failed) == ("DONE", 0, 0)


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("in_place", [False, True], ids=["moved", "in place"])
def test_concurrent_values_stay_in_rows_without_a_match_and_may_win_in_rows_with_a_match(
    moment: str, in_place: bool, db: Connection
) -> None:
    table = make(db, v=pa.array([-i for i in range(30)], pa.int64()))

    def act() -> None:
        if in_place:
            rewrite(table, "v", {1: -1001, 2: -1002, 11: -1011})
        else:
            at(table).update({"v": "-1000 - id"}, where="id IN (1, 2, 11)")

    with MOMENTS[moment](act):
        assert load(table, SOURCE, "k", ["v"]).status == "DONE"
    values_found = values(table)
    assert values_found.pop(2) in (-1002, 1020)
    assert values_found == {
        i: -1000 - i if i in (1, 11) else 10 * (100 + i) if i % 2 == 0 else -i
        for i in range(30)
        if i != 2
    }


@pytest.mark.parametrize("in_place", [False, True], ids=["moved", "in place"])
def test_keys_that_change_between_two_commits_are_looked_up_again_in_all_fragments(
    in_place: bool, db: Connection
) -> None:
    table = make(db)
    cells: dict[int, int | None] = {0: 128, 2: 999, 3: 104, 20: 126, 22: 995, 23: 100}

    def act() -> None:
        if in_place:
            rewrite(table, "k", cells)
            return
        for i, key in cells.items():
            move_key(table, str(i), key or 0)

    with around_commits(after={0: act}):
        result = load(table, SOURCE, "k", ["v"], commit_granularity=1, concurrency=1, task_size=10)
    assert values(table) == expected(table)
    assert (result.status, result.rows_recomputed, result.rows_nulled) == ("DONE", 2, 2)


def test_a_key_of_a_fragment_without_any_match_that_gets_one_is_looked_up(db: Connection) -> None:
    table = make(db)
    source = SOURCE.filter(pa.compute.field("k") < 110)
    with joins(after=lambda: rewrite(table, "k", {25: 106})):
        result = load(table, source, "k", ["v"])
    assert values(table)[25] == 1060 and result.status == "DONE"
    assert table.count_rows("v = k * 10") == table.count_rows("v IS NOT NULL") == 6


def test_a_row_that_loses_its_match_before_its_value_is_committed_never_has_it(
    db: Connection,
) -> None:
    table = make(db, v=pa.array([-i for i in range(30)], pa.int64()))
    with joins(after=lambda: rewrite(table, "k", {2: 999, 3: 998})):
        assert load(table, SOURCE, "k", ["v"]).status == "DONE"
    values_found = values(table)
    assert (values_found[2], values_found[3]) == (None, -3)


def test_a_row_that_loses_its_match_has_no_value_of_its_old_key(db: Connection) -> None:
    table = make(db, v=pa.array([-i for i in range(30)], pa.int64()))
    with around_commits(after={0: lambda: rewrite(table, "k", {2: 999, 3: 998})}):
        result = load(table, SOURCE, "k", ["v"])
    values_found = values(table)
    assert (values_found[2], values_found[3]) == (None, -3)
    assert result.rows_nulled == 1


@pytest.mark.long
@pytest.mark.parametrize("moment", ["after the join", "before the commit"])
def test_with_null_or_error_a_key_that_changes_to_one_without_a_match_is_null_or_ends_the_job(
    moment: str, db: Connection
) -> None:
    table = make(db, v=pa.array([-i for i in range(30)], pa.int64()))
    with MOMENTS[moment](lambda: rewrite(table, "k", {2: 999, 3: 104})):
        load(table, SOURCE, "k", ["v"], on_missing="null")
    assert values(table) == expected(table) and values(table)[3] == 1040
    source = pa.table(
        {"k": pa.array(values(table, "k").values(), pa.int64()), "v": [7] * 30}
    ).group_by("k")
    complete = source.aggregate([("v", "max")]).rename_columns(["k", "v"])
    with (
        MOMENTS[moment](lambda: rewrite(table, "k", {4: 12345})),
        pytest.raises(BackfillIncompleteError, match=r"1 row without a match") as caught,
    ):
        load(table, complete, "k", ["v"], on_missing="error")
    assert values(table)[4] in (1040, None), "no value of the key that it had"
    assert isinstance(caught.value.result, BackfillJobResult)
    assert caught.value.result.status in ("PARTIAL", "FAILED")


@pytest.mark.long
def test_renamed_columns_are_followed(db: Connection) -> None:
    table = make(db)

    def act() -> None:
        at(table).alter_columns({"path": "k", "name": "key"}, {"path": "v", "name": "value"})
        at(table).update({"key": "128"}, where="id = 1")

    with joins(after=act):
        assert load(table, SOURCE, "k", ["v"]).status == "DONE"
    assert values(table, "value") == {
        i: 1280 if i == 1 else 10 * (100 + i) if i % 2 == 0 else None for i in range(30)
    }


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_target_that_is_dropped_ends_the_job_with_an_error_of_its_own(
    moment: str, db: Connection
) -> None:
    table = make(db, v=pa.array([-i for i in range(30)], pa.int64()), other=[1] * 30)
    with (
        MOMENTS[moment](lambda: at(table).drop_columns(["v"])),
        pytest.raises(CommitImpossibleError, match="'v'"),
    ):
        load(table, SOURCE, "k", ["v"])
    assert table.to_lance().schema.names == ["id", "k", "other"] and table.count_rows() == 30
    assert [job.status for job in table.list_jobs()] == ["FAILED"]


@pytest.mark.long
def test_two_loads_of_different_columns_at_once_lose_nothing(db: Connection) -> None:
    table = make(db)
    other_source = of_ids([1, 2, 3]).rename_columns(["id", "w"])
    with joins(after=lambda: load(table, other_source, "id", ["w"])):
        load(table, SOURCE, "k", ["v"])
    assert values(table) == expected(table)
    assert values(table, "w") == {i: 10 * i if i in (1, 2, 3) else None for i in range(30)}


@pytest.mark.long
def test_two_loads_of_one_column_at_once_leave_values_of_either(db: Connection) -> None:
    table = make(db)
    other_source = pa.table(
        {"id": pa.array([1, 2, 3], pa.int64()), "v": pa.array([-1, -2, -3], pa.int64())}
    )
    before = table.to_arrow()
    with joins(after=lambda: load(table, other_source, "id", ["v"])):
        load(table, SOURCE, "k", ["v"])
    values_found = values(table)
    assert values_found.pop(2) in (-2, 1020)
    assert values_found == {
        i: -i if i in (1, 3) else 10 * (100 + i) if i % 2 == 0 else None
        for i in range(30)
        if i != 2
    }
    assert_same(table.to_arrow(["id", "k"]), before)


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_same_load_twice_at_once_fills_the_column(moment: str, db: Connection) -> None:
    table = make(db)
    with MOMENTS[moment](lambda: load(table, SOURCE, "k", ["v"])):
        assert load(table, SOURCE, "k", ["v"]).status == "DONE"
    assert values(table) == expected(table)
    assert [job.status for job in table.list_jobs()] == ["DONE", "DONE"]


@pytest.mark.long
@pytest.mark.parametrize("compacts", [False, True], ids=["as they are", "compacted"])
def test_rows_that_changed_between_an_interruption_and_the_next_call_have_the_values_of_their_new_keys(
    compacts: bool, db: Connection
) -> None:
    table = make(db)
    with around_commits(before={0: stop}), pytest.raises(Stop):
        load(table, SOURCE, "k", ["v"])
    mix(table)
    if compacts:
        compact(table)
    result = load(table, SOURCE, "k", ["v"])
    assert (result.status, values(table)) == ("DONE", expected(table))
    assert result.rows_from_checkpoint > 0
