"""Each micro-batch is in the table once, regardless of its driver."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pytest

import lance_spark
from lance_spark.changes.options import ChangeOptions
from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.commit_loop import CommitPolicy
from lance_spark.commit.conflicts import history
from lance_spark.commit.rows import append_commit
from lance_spark.commit.verify import take_back_rows
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    OptionError,
    TableNotFoundError,
)
from lance_spark.options.io_options import ReadOptions
from lance_spark.staging import area, orphans
from lance_spark.staging.area import Staging, new_id
from lance_spark.streaming.writes import StreamWrite
from lance_spark.upkeep import small_fragments
from lance_spark.upkeep.compaction import CompactionTask
from tests.lance_spark.streaming.micro_batches import SCHEMA, MicroBatchQuery, rows_of
from tests.support.faults import unused_files


@pytest.fixture
def query(tmp_path: Path) -> MicroBatchQuery:
    return MicroBatchQuery(table=str(tmp_path / "t.lance"))


def records(query: MicroBatchQuery) -> list[str]:
    return sorted(path.name for path in Path(query.table, "_lance_spark", "apps").rglob("*.*"))


def clean_up(query: MicroBatchQuery) -> None:
    """Removes all versions but the latest."""
    query_of_others = MicroBatchQuery(table=query.table, name="others")
    query_of_others.write(len(lance.dataset(query.table).versions()), [-1])()
    lance.dataset(query.table).cleanup_old_versions(timedelta(0), delete_unverified=False)
    assert len(lance.dataset(query.table).versions()) == 1


def write_long_ago(query: MicroBatchQuery, batch_id: int) -> Callable[[], None]:
    """Writes a batch by a job that began a minute ago, and returns its commit."""
    made = int(time.time()) - 60
    with patch.object(area, "new_id", lambda family="": f"{new_id(family)[:32]}{made:08x}"):
        return query.write(batch_id)


def die(commit: Callable[[], None], owner: Any, name: str) -> None:
    """Runs a commit whose process dies at a function."""
    with patch.object(owner, name, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        commit()


def test_a_batch_makes_one_version_and_a_repeated_batch_makes_none(query: MicroBatchQuery) -> None:
    query.run(0, 1, 2)
    assert query.version() == 3
    query.run(2)
    assert (query.version(), query.ids()) == (3, rows_of(0, 1, 2))
    assert unused_files(query.table) == set()
    # The earlier batch stays known if the next batch fails before its commit.
    assert records(query) == [f"{n:020d}.{kind}" for n in (1, 2) for kind in ("begun", "done")]


def test_complete_mode_replaces_the_rows_once_per_batch(query: MicroBatchQuery) -> None:
    totals = MicroBatchQuery(table=query.table, overwrite=True)
    totals.run(0, 1, 1)
    assert (totals.version(), totals.ids()) == (2, rows_of(1))
    assert unused_files(totals.table) == set()


def test_an_empty_batch_makes_a_table_and_no_further_version(query: MicroBatchQuery) -> None:
    query.write(0, [])()
    query.write(1, [])()
    query.run(1, 2)
    assert (query.version(), query.ids()) == (2, rows_of(2))


def test_a_batch_is_recognised_after_a_cleanup_of_all_versions(query: MicroBatchQuery) -> None:
    query.run(0, 1)
    clean_up(query)
    query.run(1)
    assert query.ids() == [-1, *rows_of(0, 1)]


def test_a_batch_without_its_record_is_found_among_the_versions_since_it_began(
    query: MicroBatchQuery,
) -> None:
    query.run(0)
    with (
        patch.object(AppLedger, "finish", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        query.run(1)
    query.run(1)
    assert query.ids() == rows_of(0, 1)
    assert f"{1:020d}.done" in records(query)


def test_a_batch_without_record_and_versions_is_neither_skipped_nor_written(
    query: MicroBatchQuery,
) -> None:
    query.run(0)
    with (
        patch.object(AppLedger, "finish", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        query.run(1)
    clean_up(query)
    history._forget_events()  # as in another process
    with pytest.raises(
        CommitOutcomeUnknownError, match=r"Transaction 1 .*was cleaned up"
    ) as caught:
        query.run(1)
    assert query.ids() == [-1, *rows_of(0, 1)]
    # The remedy of the message.
    done = str(caught.value).partition("create the empty file ")[2].partition(",")[0]
    Path(query.table, done).touch()
    query.run(1, 2)
    assert query.ids() == [-1, *rows_of(0, 1, 2)]


def test_a_restored_checkpoint_raises_and_changes_nothing(query: MicroBatchQuery) -> None:
    query.run(0, 1, 2, 3)
    with pytest.raises(
        lance_spark.StreamRewoundError, match="Batch 1 is older than batch 3"
    ) as caught:
        query.write(1, [77])()
    assert (caught.value.batch, caught.value.latest_batch, caught.value.app_id) == (1, 3, "orders")
    assert query.ids() == rows_of(0, 1, 2, 3)
    assert unused_files(query.table) == set()


def test_queries_on_one_table_know_nothing_of_each_other(query: MicroBatchQuery) -> None:
    other = MicroBatchQuery(table=query.table, name="returns")
    query.run(0, 1)
    other.run(0)
    query.run(2)
    other.run(0, 1)
    assert query.ids() == sorted([*rows_of(0, 1, 2), *rows_of(0, 1)])
    totals, others = (
        MicroBatchQuery(table=query.table, name=name, overwrite=True)
        for name in ("totals", "others")
    )
    totals.run(0)
    others.run(1)
    totals.run(0)
    assert query.ids() == rows_of(1)


def test_files_of_a_dead_driver_are_deleted_after_the_next_batch(query: MicroBatchQuery) -> None:
    query.run(0)
    write_long_ago(query, 1)  # the driver dies before the commit
    assert unused_files(query.table) != set()
    query.run(1)
    assert (unused_files(query.table), query.ids()) == (set(), rows_of(0, 1))


def test_a_driver_that_stopped_before_its_commit_commits_nothing(query: MicroBatchQuery) -> None:
    query.run(0)
    stopped = write_long_ago(query, 1)
    query.run(1)
    stopped()
    query.run(2)
    with pytest.raises(lance_spark.StreamRewoundError):
        stopped()
    assert query.ids() == rows_of(0, 1, 2)
    assert unused_files(query.table) == set()


def _stop_at(owner: Any, name: str, *, after: bool, meanwhile: Callable[[], None]) -> Any:
    """Runs a second driver before or after the first call of a function."""
    real, calls = getattr(owner, name), [0]

    def stopping(*arguments: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] > 1:
            return real(*arguments, **more)
        result = real(*arguments, **more) if after else None
        meanwhile()
        return result if after else real(*arguments, **more)

    return patch.object(owner, name, stopping)


STOPS = {
    "before its records": (AppLedger, "begin", False),
    "after its records": (AppLedger, "begin", True),
    "after its marker": (Staging, "begin_commit", True),
    "before its commit": (append_commit, "attempt_commit", False),
}


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "complete"])
@pytest.mark.parametrize("more", [0, 2], ids=["its batch", "its batch and two more"])
@pytest.mark.parametrize("stop", STOPS)
def test_a_driver_that_stopped_in_its_commit_doubles_nothing(
    query: MicroBatchQuery, stop: str, more: int, overwrite: bool
) -> None:
    query = MicroBatchQuery(table=query.table, overwrite=overwrite)
    query.run(0)
    late = write_long_ago(query, 1)
    owner, name, after = STOPS[stop]
    second = range(1, 2 + more)
    with _stop_at(owner, name, after=after, meanwhile=lambda: query.run(*second)):
        if stop == "after its records":
            with pytest.raises(CommitError, match="The job ended before its commit"):
                late()
        elif stop == "before its records" and more:
            with pytest.raises(lance_spark.StreamRewoundError):
                late()
        else:
            late()
    assert query.ids() == (rows_of(second[-1]) if overwrite else rows_of(0, *second))
    query.run(second[-1] + 1)
    assert query.ids() == (
        rows_of(second[-1] + 1) if overwrite else rows_of(0, *second, second[-1] + 1)
    )
    # A version that was taken back names its files.
    assert {name for name in unused_files(query.table) if "staging" in name} == set()


def test_two_drivers_that_create_the_table_make_it_once(query: MicroBatchQuery) -> None:
    late = query.write(0)
    with _stop_at(append_commit, "attempt_commit", after=False, meanwhile=lambda: query.run(0)):
        late()
    assert query.ids() == rows_of(0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"txn_app_id": "x", "txn_version": "1"}, "is no option of STREAM"),
        ({"mode": "backfill"}, "is no option of STREAM"),
        ({"create_only": "true"}, "is no option of STREAM"),
        ({"streaming_query_id": " "}, "an id that no other query has"),
    ],
    ids=["transaction", "backfill", "create_only", "empty id"],
)
def test_options_of_other_writes_are_refused_before_anything_is_written(
    query: MicroBatchQuery, option: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        MicroBatchQuery(table=query.table, options=tuple(option.items())).run(0)
    assert not Path(query.table).exists()


def test_a_batch_without_a_query_id_is_refused_and_leaves_nothing(query: MicroBatchQuery) -> None:
    with pytest.raises(OptionError, match="streaming_query_id"):
        MicroBatchQuery(table=query.table, name="").run(0)
    assert not Path(query.table).exists()


def test_the_query_id_comes_from_the_checkpoint(query: MicroBatchQuery, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "from-the-checkpoint"}')
    checkpoint = ("checkpointlocation", (tmp_path / "checkpoint").as_uri())
    MicroBatchQuery(table=query.table, name="", options=(checkpoint,)).run(0)
    MicroBatchQuery(table=query.table, name="from-the-checkpoint").run(0)
    assert (query.version(), query.ids()) == (1, rows_of(0))


@pytest.mark.parametrize(
    ("batch", "is_skewed"),
    [(1, False), (2, False), (2, True)],
    ids=["its own batch", "the next batch", "the next batch, clocks differ"],
)
def test_a_stopped_driver_that_continues_leaves_the_job_of_the_next_driver_alone(
    query: MicroBatchQuery, batch: int, is_skewed: bool
) -> None:
    query.run(0)
    stopped = query.write(1) if is_skewed else write_long_ago(query, 1)
    query.run(*range(1, batch))
    live = write_long_ago(query, batch) if is_skewed else query.write(batch)
    stopped()
    assert len(list(Path(query.table, "_lance_spark", "staging").glob("*/open"))) == 1
    live()
    assert query.ids() == rows_of(*range(batch + 1))
    assert {name for name in unused_files(query.table) if "staging" in name} == set()


def test_a_refused_commit_is_forgotten(query: MicroBatchQuery) -> None:
    query.run(0)
    files = set(Path(query.table, "data").iterdir())
    refused = query.write(1)
    for file in set(Path(query.table, "data").iterdir()) - files:
        file.unlink()
    with pytest.raises(CommitConflictError, match="were deleted before their commit"):
        refused()
    assert records(query) == [f"{0:020d}.begun", f"{0:020d}.done"]
    clean_up(query)
    query.run(0, 1)
    assert query.ids() == [-1, *rows_of(0, 1)]


def test_a_refused_commit_keeps_the_record_of_another_process(query: MicroBatchQuery) -> None:
    query.run(0)
    die(query.write(1), AppLedger, "finish")
    before = records(query)
    with (
        patch.object(
            AppLedger, "_find_first", return_value=None
        ),  # this process starts before the commit of the other
        patch.object(Staging, "refuse_missing", side_effect=CommitConflictError("refused", uri="")),
        pytest.raises(CommitConflictError, match="refused"),
    ):
        query.run(1)
    assert records(query) == before
    query.run(1)
    assert query.ids() == rows_of(0, 1)


@pytest.mark.parametrize("recorded", [True, False], ids=["with its record", "without a record"])
def test_a_driver_whose_batch_was_committed_and_cleaned_up_doubles_nothing(
    query: MicroBatchQuery, recorded: bool
) -> None:
    query.run(0)
    late = write_long_ago(query, 1)

    def meanwhile() -> None:
        if recorded:
            query.run(1)
        else:
            die(query.write(1), AppLedger, "finish")
        clean_up(query)

    with _stop_at(append_commit, "attempt_commit", after=False, meanwhile=meanwhile):
        if recorded:
            late()
        else:
            with pytest.raises(
                CommitOutcomeUnknownError, match="may have been committed by another process before"
            ):
                late()
    assert query.ids() == sorted([-1, *rows_of(*((0, 1) if recorded else (0, 1, 1)))])


def test_a_batch_whose_first_commit_is_taken_back_is_written_again(query: MicroBatchQuery) -> None:
    query.run(0)
    late = query.write(1)

    def take_back_first() -> None:
        ref = DatasetRef.at(query.table)
        landed = ref.open_latest().checkout_version(2)
        transaction: Any = landed.read_transaction(2)
        job_id = transaction.transaction_properties["lance-spark.job"]
        take_back_rows(
            ref,
            landed,
            transaction.operation.fragments,
            job_id=job_id,
            policy=CommitPolicy.of(None),
        )

    with (
        _stop_at(AppLedger, "finish_repeated", after=False, meanwhile=take_back_first),
        _stop_at(
            append_commit,
            "attempt_commit",
            after=False,
            meanwhile=lambda: die(query.write(1), AppLedger, "finish"),
        ),
        pytest.raises(CommitConflictError, match="took its version 2 back"),
    ):
        late()
    assert query.ids() == rows_of(0)
    query.run(1)
    assert query.ids() == rows_of(0, 1)


def test_a_second_commit_whose_process_died_is_taken_back(query: MicroBatchQuery) -> None:
    query.run(0)
    late = query.write(1)
    first = query.write(1)
    with _stop_at(
        append_commit,
        "attempt_commit",
        after=False,
        meanwhile=lambda: die(first, AppLedger, "finish"),
    ):
        die(late, append_commit, "take_back_rows")
    assert query.ids() == sorted(rows_of(0, 1, 1))
    query.run(1, 2)
    assert query.ids() == rows_of(0, 1, 2)


def test_a_commit_without_an_answer_is_searched_for_once_among_the_versions_since(
    query: MicroBatchQuery,
) -> None:
    query.run(0)
    with (
        patch.object(area, "is_local", lambda uri: False),
        patch.object(orphans, "is_local", lambda uri: False),
        patch.object(orphans, "_CLOCK_SKEW", timedelta(minutes=-2)),
        patch.object(orphans, "abort", wraps=area.abort) as abort,
    ):
        die(write_long_ago(query, 1), append_commit, "attempt_commit")
        query.run(1, 2, 3)
    assert [call.kwargs for call in abort.call_args_list] == [{"since": 2}]
    assert query.ids() == rows_of(0, 1, 2, 3)


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "complete"])
def test_a_dropped_table_is_not_created_again(query: MicroBatchQuery, overwrite: bool) -> None:
    query = MicroBatchQuery(table=query.table, overwrite=overwrite)
    query.run(0)
    shutil.rmtree(query.table)
    with pytest.raises(TableNotFoundError, match="dropped before batch 1 of the query"):
        query.run(1)
    assert not Path(query.table).exists()


def test_no_text_of_a_write_or_read_shows_secrets(query: MicroBatchQuery) -> None:
    options = {
        "path": query.table,
        "storage.aws_secret_access_key": "hush",
        "streaming_query_id": "q",
    }
    stream = StreamWrite.of(options, SCHEMA, overwrite=False)
    del options["streaming_query_id"]
    for shown in (stream, stream.options, ReadOptions.parse(options), ChangeOptions.parse(options)):
        assert "hush" not in repr(shown)


def fragments(query: MicroBatchQuery) -> int:
    return len(lance.dataset(query.table).get_fragments())


def test_compact_after_bounds_the_small_fragments(query: MicroBatchQuery) -> None:
    query = dataclasses.replace(query, options=(("compact_after", "3"),))
    query.run(0, 1, 2)
    assert (fragments(query), query.version()) == (3, 3)
    query.run(3)
    version = query.version()
    assert fragments(query) == 1
    query.run(3)  # a repeated batch compacts nothing
    assert query.version() == version
    query.run(4, 5, 6)
    assert (fragments(query), query.ids()) == (1, rows_of(*range(7)))
    assert unused_files(query.table) == set()


def test_a_micro_batch_joins_a_bounded_number_of_rows(
    query: MicroBatchQuery, monkeypatch: Any
) -> None:
    query.run(0, 1, 2, 3, 4, 5)
    rows = lance.dataset(query.table).count_rows() // 3
    lance.dataset(query.table).update_config(
        {"lance.compaction.target_rows_per_fragment": str(rows)}
    )
    monkeypatch.setattr(small_fragments, "_MOST_ROWS", 1)
    counts = []
    for _ in range(3):
        small_fragments.join_small_fragments(DatasetRef.at(query.table), 1)
        counts.append(fragments(query))
    assert (counts, query.ids()) == ([5, 4, 3], rows_of(*range(6)))


@pytest.mark.parametrize("failure", ["task", "plan", "commit", "race"])
def test_a_failed_compaction_fails_no_batch(
    query: MicroBatchQuery, failure: str, monkeypatch: Any
) -> None:
    query = dataclasses.replace(query, options=(("compact_after", "1"),))
    query.run(0)
    commit = small_fragments.commit_compacted

    def commit_late(*args: Any, **kwargs: Any) -> Any:
        lance.dataset(query.table).delete("id = 0")
        return commit(*args, **kwargs)

    def fail(*_args: Any, **_kwargs: Any) -> Any:
        raise CommitError("refused", uri="u") if failure == "commit" else OSError("disk full")

    if failure == "race":
        monkeypatch.setattr(small_fragments, "commit_compacted", commit_late)
    elif failure == "commit":
        monkeypatch.setattr(small_fragments, "commit_compacted", fail)
    else:
        owner = CompactionTask if failure == "task" else small_fragments.Basis
        monkeypatch.setattr(owner, "_rewrite" if failure == "task" else "of", fail)
    query.run(1)
    rows = rows_of(0, 1)[failure == "race" :]
    assert (fragments(query), query.ids(), unused_files(query.table)) == (2, rows, set())
    monkeypatch.undo()
    query.run(2)
    assert (fragments(query), query.ids()) == (1, rows + rows_of(2))


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_compact_after_is_a_number_of_fragments(query: MicroBatchQuery, text: str) -> None:
    with pytest.raises(OptionError, match=r"compact_after.*1 or more"):
        dataclasses.replace(query, options=(("compact_after", text),)).run(0)
