"""Many writers of one table: every writer succeeds, and all their rows are in the table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError as LanceConflict
from pyspark.sql.types import LongType

from lance_spark.commit.conflicts.table_state import SeenHistory
from lance_spark.errors import CommitConflictError
from tests.lance_spark.commit import column_commits
from tests.lance_spark.commit.column_commits import commit, stage
from tests.lance_spark.commit.hot_writer import ROWS, value
from tests.lance_spark.write.backfills import (
    Backfill,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
)

WRITERS, ROUNDS, APPENDS = 6, 5, 5
MOST_SECONDS = 120
"""Most seconds for all writers, on a busy machine with two cores."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table.lance")


class WriterProcess:
    """A writer in a process of its own."""

    def __init__(self, kind: str, path: str, number: int = 0, rounds: int = 0) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.lance_spark.commit.hot_writer",
                kind,
                path,
                str(number),
                str(rounds),
            ],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> Any:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        return json.loads(line) if line else pytest.fail(self._process.communicate(timeout=10)[1])

    def say(self) -> None:
        self._process.stdin.write("go\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def children(*all_of_them: WriterProcess) -> Iterator[None]:
    try:
        for child in all_of_them:
            assert child.answer() == "ready"
        yield
    finally:
        for child in all_of_them:
            child.close()


@pytest.mark.long
def test_all_writers_of_a_busy_table_succeed(path: str) -> None:
    make_table(path, fragments=WRITERS, rows=ROWS, c=pa.int64())
    fillers = [WriterProcess("fill", path, number, ROUNDS) for number in range(WRITERS)]
    appender = WriterProcess("append", path, 0, APPENDS)
    compactor = WriterProcess("compact", path)
    with children(*fillers, appender, compactor):
        began = time.monotonic()
        for child in (*fillers, appender, compactor):
            child.say()
        filled = [child.answer() for child in fillers]
        assert appender.answer() == {"appended": APPENDS}
        seconds = time.monotonic() - began
        compactor.say()
        compacted = compactor.answer()
    print(f"{seconds:.1f} s, {compacted}, {filled}")
    assert seconds < MOST_SECONDS
    assert max(report["longest"] for report in filled) < MOST_SECONDS / 2, "nobody starves"
    assert compacted["compacted"] or compacted["lost"], "somebody tried to move rows beside them"
    assert sum(report["retries"] for report in filled), "they raced"
    versions = [version for report in filled for version in report["versions"]]
    assert len(set(versions)) == WRITERS * ROUNDS, "each commit is a version of its own"
    current = column(path, "c")
    assert {key: current[key] for key in range(WRITERS * ROWS)} == {
        key: value(key, ROUNDS - 1) for key in range(WRITERS * ROWS)
    }
    appended = {key for key in current if key >= 1_000_000}
    assert len(appended) == APPENDS and all(current[key] is None for key in appended)
    # Failed compactions leave files of Lance, with Lance's names.
    assert {
        name for name in orphans(path) if not re.fullmatch(r"[01]{24}[0-9a-f]+\.lance", name)
    } == set()


def test_lost_races_are_tried_again_where_no_retry_is_allowed(path: str) -> None:
    writers, rounds = 8, 4
    column_commits.make_table(path, fragments=writers * rounds)
    start = threading.Barrier(writers)

    def work(number: int) -> list[Any]:
        names = [stage(path, number * rounds + i) for i in range(rounds)]
        start.wait()
        history = SeenHistory()
        return [
            commit(
                path,
                number * rounds + i,
                names[i],
                f"job-{number}-{i}",
                max_retries=0,
                history=history,
            )
            for i in range(rounds)
        ]

    with ThreadPoolExecutor(writers) as pool:
        results = [
            result for round_results in pool.map(work, range(writers)) for result in round_results
        ]
    assert sorted(result.version for result in results) == list(range(3, 3 + writers * rounds))
    assert sum(result.retries for result in results), "there were races"
    assert column(path, "v") == {
        key: key // column_commits.ROWS for key in range(writers * rounds * column_commits.ROWS)
    }


@pytest.mark.parametrize("is_new", [False, True], ids=["old column", "new column"])
def test_a_timeout_ends_it_with_nothing_half_written(
    is_new: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(path, **({} if is_new else {"c": pa.int64()}))
    before = lance.dataset(path).version
    job = Backfill(
        path, "c", LongType(), options={"commit_timeout": "1", "commit_max_retries": "0"}
    )
    rows = computed(snapshot_rows(path))
    messages = [job.task([job.batch(*zip(*rows, strict=True))])]
    attempts: list[float] = []

    def lose(*_: Any, **__: Any) -> Any:
        attempts.append(time.monotonic())
        raise LanceConflict("Failed to commit the transaction after 0 retries.")

    began = time.monotonic()
    with monkeypatch.context() as busy:
        busy.setattr(lance.LanceDataset, "commit", lose)
        with pytest.raises(CommitConflictError, match=r"gave up after \d+ retries") as caught:
            job.commit(*messages)
        seconds = time.monotonic() - began
        job.writer.abort([])
    assert caught.value.retryable
    assert ("Nothing was committed." in str(caught.value)) is not is_new
    assert ("No values were committed." in str(caught.value)) is is_new
    assert (
        "The new columns 'c' stay, all NULL; the next write fills them." in str(caught.value)
    ) is is_new
    assert len(attempts) > 3 and seconds < 10
    # A new column takes a version of its own, all NULL.
    assert lance.dataset(path).version == before + is_new
    assert set(column(path, "c").values()) == {None}
    assert orphans(path) == set()
    again = Backfill(path, "c", LongType())
    again.run(computed(snapshot_rows(path)))
    assert column(path, "c") == {key: key * 10 for key in range(30)}


def test_a_timeout_is_of_the_whole_commit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    column_commits.make_table(path, fragments=1)
    name = stage(path, 1)

    def lose(*_: Any, **__: Any) -> Any:
        raise LanceConflict("Failed to commit the transaction after 0 retries.")

    began = time.monotonic()
    with monkeypatch.context() as busy:
        busy.setattr(lance.LanceDataset, "commit", lose)
        with pytest.raises(CommitConflictError, match="Nothing was committed"):
            commit(path, 0, name, "job", timeout_s=0.3)
    assert time.monotonic() - began < 5
    assert lance.dataset(path).version == 2 and column(path, "v") == dict.fromkeys(range(10))
    # The same job with more time.
    assert commit(path, 0, name, "job").version == 3
    assert column(path, "v") == dict.fromkeys(range(10), 1)
