"""Each micro-batch is in the table once, whatever its driver does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pytest

import lance_spark
from lance_spark.commit.app_ledger import AppLedger
from lance_spark.commit.rows import append_commit
from lance_spark.errors import CommitError, CommitOutcomeUnknownError, OptionError
from lance_spark.staging.area import Staging
from tests.lance_spark.streaming.micro_batches import Query, rows_of
from tests.support.faults import unused_files


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(table=str(tmp_path / "t.lance"))


def records(query: Query) -> list[str]:
    return sorted(path.name for path in Path(query.table, "_lance_spark", "apps").rglob("*.*"))


def clean_up(query: Query) -> None:
    """Removes all versions but the latest."""
    query_of_others = Query(table=query.table, name="others")
    query_of_others.write(len(lance.dataset(query.table).versions()), [-1])()
    lance.dataset(query.table).cleanup_old_versions(timedelta(0), delete_unverified=False)
    assert len(lance.dataset(query.table).versions()) == 1


def test_a_batch_makes_one_version_and_a_repeated_batch_makes_none(query: Query) -> None:
    query.run(0, 1, 2)
    assert query.version() == 3
    query.run(2)
    assert (query.version(), query.ids()) == (3, rows_of(0, 1, 2))
    assert unused_files(query.table) == set()
    assert records(query) == [f"{2:020d}.begun", f"{2:020d}.done"]


def test_complete_mode_replaces_the_rows_once_per_batch(query: Query) -> None:
    totals = Query(table=query.table, overwrite=True)
    totals.run(0, 1, 1)
    assert (totals.version(), totals.ids()) == (2, rows_of(1))
    assert unused_files(totals.table) == set()


def test_an_empty_batch_makes_a_table_and_no_further_version(query: Query) -> None:
    query.write(0, [])()
    query.write(1, [])()
    query.run(1, 2)
    assert (query.version(), query.ids()) == (2, rows_of(2))


def test_a_batch_is_recognised_after_a_cleanup_of_all_versions(query: Query) -> None:
    query.run(0, 1)
    clean_up(query)
    query.run(1)
    assert query.ids() == [-1, *rows_of(0, 1)]


def test_a_batch_without_its_record_is_found_among_the_versions_since_it_began(query: Query) -> None:
    query.run(0)
    with patch.object(AppLedger, "finish", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        query.run(1)
    query.run(1)
    assert query.ids() == rows_of(0, 1)
    assert f"{1:020d}.done" in records(query)


def test_a_batch_without_record_and_versions_is_neither_skipped_nor_written(query: Query) -> None:
    query.run(0)
    with patch.object(AppLedger, "finish", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        query.run(1)
    clean_up(query)
    with pytest.raises(CommitOutcomeUnknownError, match=r"Transaction 1 .*was cleaned up") as caught:
        query.run(1)
    assert query.ids() == [-1, *rows_of(0, 1)]
    # The remedy of the message.
    done = str(caught.value).partition("create the empty file ")[2].partition(",")[0]
    Path(query.table, done).touch()
    query.run(1, 2)
    assert query.ids() == [-1, *rows_of(0, 1, 2)]


def test_a_restored_checkpoint_raises_and_changes_nothing(query: Query) -> None:
    query.run(0, 1, 2, 3)
    with pytest.raises(lance_spark.StreamRewoundError, match="Batch 1 is older than batch 3") as caught:
        query.write(1, [77])()
    assert (caught.value.batch, caught.value.latest_batch, caught.value.app_id) == (1, 3, "orders")
    assert query.ids() == rows_of(0, 1, 2, 3)
    assert unused_files(query.table) == set()


def test_queries_on_one_table_know_nothing_of_each_other(query: Query) -> None:
    other = Query(table=query.table, name="returns")
    query.run(0, 1)
    other.run(0)
    query.run(2)
    other.run(0, 1)
    assert query.ids() == sorted([*rows_of(0, 1, 2), *rows_of(0, 1)])


def test_files_of_a_dead_driver_are_deleted_after_the_next_batch(query: Query) -> None:
    query.run(0)
    query.write(1)  # the driver dies before the commit
    assert unused_files(query.table) != set()
    query.run(1)
    assert (unused_files(query.table), query.ids()) == (set(), rows_of(0, 1))


def test_a_driver_that_stopped_before_its_commit_commits_nothing(query: Query) -> None:
    query.run(0)
    stopped = query.write(1)
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
    query: Query, stop: str, more: int, overwrite: bool
) -> None:
    query = Query(table=query.table, overwrite=overwrite)
    query.run(0)
    late = query.write(1)
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
    assert query.ids() == (rows_of(second[-1] + 1) if overwrite else rows_of(0, *second, second[-1] + 1))
    # A version that was taken back names its files.
    assert {name for name in unused_files(query.table) if "staging" in name} == set()


def test_two_drivers_that_create_the_table_make_it_once(query: Query) -> None:
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
    query: Query, option: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Query(table=query.table, options=tuple(option.items())).run(0)
    assert not Path(query.table).exists()


def test_a_batch_without_a_query_id_is_refused_and_leaves_nothing(query: Query) -> None:
    with pytest.raises(OptionError, match="streaming_query_id"):
        Query(table=query.table, name="").run(0)
    assert not Path(query.table).exists()


def test_the_query_id_comes_from_the_checkpoint(query: Query, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "from-the-checkpoint"}')
    checkpoint = ("checkpointlocation", (tmp_path / "checkpoint").as_uri())
    Query(table=query.table, name="", options=(checkpoint,)).run(0)
    Query(table=query.table, name="from-the-checkpoint").run(0)
    assert (query.version(), query.ids()) == (1, rows_of(0))
