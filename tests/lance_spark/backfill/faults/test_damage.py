"""Checkpoints that are truncated, altered, foreign or missing are recomputed, and never used."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import lance_spark
from lance_spark.errors import TableUnwritableError
from tests.support.faults import BATCH, SLOTS, Lab, checkpoint_files, run, run_and_fail, wrong_rows

pytestmark = pytest.mark.sample(1, tests=5)

ROWS = 60


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit_in_the_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def flip_a_bit_of_the_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def put_something_else_there(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(200) + b"PAR1")


def delete(path: Path) -> None:
    path.unlink()


def make_a_folder_of_it(path: Path) -> None:
    path.unlink()
    path.mkdir()


Damage = Callable[[Path], None]


def failed_table(lab: Lab, *, ranges: bool) -> lance_spark.Table:
    """Returns a table of one fragment with five checkpoints; the last ten rows are missing."""
    table = lab.table(ROWS, ROWS)
    lab.order({ROWS - 1: "raise"})
    run_and_fail(table, task_size=20 if ranges else 1000)
    lab.new_calls()
    lab.pardon()
    return table


def values_files(table: lance_spark.Table) -> dict[int, Path]:
    """Returns the checkpoints of values by their first row, from their file names."""
    files = [path for path in checkpoint_files(table) if path.suffix == ".rows"]
    return {int(path.name.partition("-")[0]): path for path in files}


@pytest.mark.sample(3)
@pytest.mark.parametrize("ranges", [False, True], ids=["whole fragment", "ranges"])
@pytest.mark.parametrize(
    "damage",
    [
        cut_off,
        empty,
        flip_a_bit_in_the_middle,
        flip_a_bit_of_the_last_byte,
        put_something_else_there,
        delete,
        make_a_folder_of_it,
    ],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_checkpoint_is_computed_again_and_no_other(
    lab: Lab, damage: Damage, ranges: bool
):
    table = failed_table(lab, ranges=ranges)
    files = values_files(table)
    assert sorted(files) == [0, 10, 20, 30, 40]
    damage(files[10])
    damage(files[30])
    run(table, task_size=20 if ranges else 1000)
    assert lab.new_calls() == Counter([*range(10, 20), *range(30, 40), *range(50, 60)])
    assert wrong_rows(table) == []


def test_a_checkpoint_under_the_name_of_another_range_is_not_used(lab: Lab):
    table = failed_table(lab, ranges=False)
    files = values_files(table)
    shutil.copy(files[0], files[20])
    run(table, task_size=1000)
    assert lab.new_calls() == Counter([*range(20, 30), *range(50, 60)])
    assert wrong_rows(table) == []


def test_a_checkpoint_of_another_table_is_not_used(lab: Lab):
    table = failed_table(lab, ranges=False)
    other_table = lab.table(ROWS, ROWS, name="other")
    lab.order({ROWS - 1: "raise"})
    run_and_fail(other_table, task_size=1000)
    lab.new_calls()
    lab.pardon()
    other_files = values_files(other_table)
    for start, path in values_files(table).items():
        shutil.copy(other_files[start], path)
    run(table, task_size=1000)
    assert lab.new_calls() == Counter(range(ROWS))
    assert wrong_rows(table) == []


def test_strange_files_among_the_checkpoints_change_nothing(lab: Lab):
    table = failed_table(lab, ranges=False)
    folder = next(iter(values_files(table).values())).parent
    for name in (
        "notes.txt",
        ".hidden.tmp",
        "0-10.10.job.rows",
        "9999-x.rows",
        "0-10.10.job.0123456789abcdef.rows",
    ):
        (folder / name).write_bytes(b"nothing of ours")
    (folder / "folder").mkdir()
    run(table, task_size=1000)
    assert lab.new_calls() == Counter(range(50, 60))
    assert wrong_rows(table) == []


with_and_without_checkpoints = pytest.mark.parametrize(
    "checkpoints", [True, False], ids=["checkpoints", "no checkpoints"]
)


@pytest.mark.sample(2)
@with_and_without_checkpoints
def test_a_column_file_that_was_finished_and_is_damaged_is_not_used(lab: Lab, checkpoints: bool):
    table = finished_and_not_committed(lab, checkpoints=checkpoints)
    for path in staged_files(table):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    run(table, task_size=1000)
    assert lab.new_calls() == Counter() if checkpoints else Counter(range(ROWS))
    assert wrong_rows(table) == []


@with_and_without_checkpoints
def test_a_column_file_that_was_finished_and_is_gone_is_made_again(lab: Lab, checkpoints: bool):
    table = finished_and_not_committed(lab, checkpoints=checkpoints)
    for path in staged_files(table):
        path.unlink()
    run(table, task_size=1000)
    assert lab.new_calls() == Counter() if checkpoints else Counter(range(ROWS))
    assert wrong_rows(table) == []


@with_and_without_checkpoints
def test_a_column_file_that_was_finished_serves_the_next_run(lab: Lab, checkpoints: bool):
    table = finished_and_not_committed(lab, checkpoints=checkpoints)
    assert len(staged_files(table)) == 1
    run(table, task_size=1000)
    assert lab.new_calls() == Counter()
    assert wrong_rows(table) == []


def finished_and_not_committed(lab: Lab, *, checkpoints: bool) -> lance_spark.Table:
    """Returns a table whose fragment was computed by a job without a commit; checkpoints of batches exist or not."""
    table = lab.table(ROWS, ROWS)
    flush_s = 0 if checkpoints else 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lance_spark.backfill.driver.group_commit.GroupCommits._commit", refuse)
        with pytest.raises(lance_spark.BackfillIncompleteError, match="the store is down"):
            run(table, task_size=1000, batch_checkpoint_flush_interval_seconds=flush_s)
    assert lab.new_calls() == Counter(range(ROWS))
    assert len(values_files(table)) == (ROWS // BATCH if checkpoints else 0)
    return table


def refuse(*_: object) -> None:
    raise OSError("the store is down")


def staged_files(table: lance_spark.Table) -> list[Path]:
    referenced_files = {
        file.path for fragment in table.to_lance().get_fragments() for file in fragment.data_files()
    }
    return [path for path in Path(table.uri, "data").iterdir() if path.name not in referenced_files]


def test_a_store_that_refuses_a_checkpoint_ends_the_job_at_once(lab: Lab):
    """Simulates a full disk or a missing permission, which root cannot be denied: a file replaces the folder."""
    table = lab.table(16 * BATCH, 2 * BATCH)
    checkpoints = Path(table.uri, "_lance_spark", "checkpoints")
    checkpoints.write_bytes(b"")
    with pytest.raises(TableUnwritableError, match="Not a directory") as caught:
        run(table, task_size=10_000)
    assert str(caught.value).count("cannot be written") == 1 and caught.value.uri == table.uri
    assert lab.new_calls().total() <= SLOTS * BATCH, "no range is begun after one was refused"
    assert [job.status for job in table.list_jobs()] == ["FAILED"]
    assert {error.error_type for error in table.get_errors()} == {
        "lance_spark.errors.TableUnwritableError"
    }
    checkpoints.unlink()
    run(table)
    assert wrong_rows(table) == []


def test_records_that_are_damaged_cost_calls_and_nothing_else(lab: Lab):
    table = lab.table(ROWS, BATCH * 2)
    run(table)
    lab.new_calls()
    records = [
        path
        for path in Path(table.uri, "_lance_spark", "records.lance").rglob("*")
        if path.is_file()
    ]
    assert records
    for path in records:
        cut_off(path)
    run(table)
    assert lab.new_calls() == Counter(x for x in range(ROWS) if x % 7 == 3), (
        "which rows were computed as NULL is not known"
    )
    assert wrong_rows(table) == []
