"""Batches over many fragments, and reading and writing during the calls, without Spark."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_spark import BackfillIncompleteError, Table
from lance_spark.backfill.planning import planner
from lance_spark.backfill.task import row_stream
from lance_spark.backfill.task.messages import RangeOutcome, Task, TaskLimits
from lance_spark.rows.input_reader import InputReader
from lance_spark.staging.column_file import ColumnFile
from tests.support.inline_jobs import InlineLab, InlineScheduler, acting, values, without_spark
from udf_runtime import UDF, skip_on_error, udf
from udf_runtime.checkpoint import CheckpointStore
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.protocol import shared_batch
from udf_runtime.execute.result import BatchResult
from udf_runtime.policies.batch_size import AdaptiveSize

pytestmark = pytest.mark.sample(1, tests=5)


def sized(
    lab: InlineLab, *, bad: frozenset[int] = frozenset(), iterates: bool = False, **options: Any
) -> UDF:
    """A UDF over batches that logs the ids of each call in a line, and returns the negative ids."""
    log, uri = str(lab.log), lab.uri

    def negate(ids: pa.Array) -> pa.Array:
        from tests.support.inline_jobs import act_at

        rows = ids.to_pylist()
        with open(log, "a") as file:
            file.write(",".join(map(str, rows)) + "\n")
        for row in rows:
            act_at(uri, row)
            if row in bad:
                raise ValueError(f"row {row}")
        return pa.array([-row for row in rows], pa.int64())

    def negate_each(ids: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return map(negate, ids)

    function: Any = negate_each if iterates else negate
    return udf(
        function, data_type=pa.int64(), input_columns=["id"], version="1", name="f", **options
    )


def calls_of(lab: InlineLab) -> list[list[int]]:
    """Returns the ids of each call since the last look."""
    lines = lab.log.read_text().split() if lab.log.exists() else []
    lab.log.unlink(missing_ok=True)
    return [[int(row) for row in line.split(",")] for line in lines]


def make(lab: InlineLab, function: UDF, *, rows: int, rows_per_file: int) -> Table:
    table = lab.make(pa.table({"id": range(rows)}), rows_per_file=rows_per_file)
    table.add_columns({"v": function})
    return table


def has_threads() -> bool:
    return any(
        thread.name.startswith(("lance-spark-read", "lance-spark-write"))
        for thread in threading.enumerate()
    )


@pytest.mark.parametrize("iterates", [False, True])
def test_batches_span_small_fragments(lab: InlineLab, iterates: bool) -> None:
    table = make(lab, sized(lab, iterates=iterates, batch_size=64), rows=1000, rows_per_file=10)
    result = table.backfill("v", task_size=1000)
    assert [len(rows) for rows in calls_of(lab)] == [64] * 15 + [40]
    assert (result.rows_computed, result.fragments_done) == (1000, 100)
    assert values(table, "v") == {row: (-row,) for row in range(1000)}
    assert not has_threads()


@pytest.mark.parametrize(
    ("slots", "task_size"),
    [
        pytest.param(2, None, marks=pytest.mark.long),
        pytest.param(4, None, marks=pytest.mark.long),
        (8, None),
        pytest.param(16, None, marks=pytest.mark.long),
        (2, 80),
    ],
)
def test_tasks_of_small_fragments_hold_full_calls(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch, slots: int, task_size: int | None
) -> None:
    monkeypatch.setattr(planner, "known_slots", lambda spark: slots)
    table = make(lab, sized(lab, batch_size=50), rows=1000, rows_per_file=10)
    result = table.backfill("v", task_size=task_size, concurrency=None)
    assert (len(calls_of(lab)), result.rows_computed) == (20, 1000)
    assert values(table, "v") == {row: (-row,) for row in range(1000)}


def test_calls_are_full_over_the_small_reads_of_wide_rows(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call waits for a read of 4 MiB, here the rows 0 to 2,000."""
    reads, read = list[int](), InputReader.batches

    def batches(reader: InputReader, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(reader, *arguments, **options):
            reads.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(InputReader, "batches", batches)
    wide = pa.array([os.urandom(2000) for _ in range(5000)])
    table = lab.make(pa.table({"id": range(5000), "wide": wide}), rows_per_file=5000)
    table.add_columns({"v": sized(lab, batch_size=64)})
    assert table.backfill("v", task_size=5000).rows_computed == 5000
    assert (len(reads), reads[0], sum(reads)) == (3, pytest.approx(2050, abs=100), 5000)
    assert [len(rows) for rows in calls_of(lab)] == [64] * 78 + [8]
    assert values(table, "v") == {row: (-row,) for row in range(5000)}


def test_a_scalar_udf_sees_one_fragment_after_another(lab: InlineLab) -> None:
    table = make(lab, lab.udf(), rows=40, rows_per_file=10)
    assert table.backfill("v", task_size=1000).rows_computed == 40
    assert lab.log.read_text().split() == [str(row) for row in range(40)]


@pytest.mark.parametrize(("task_size", "tasks"), [(100, 3), (None, 4)])
def test_ranges_hold_full_calls(lab: InlineLab, task_size: int | None, tasks: int) -> None:
    """Without a size, a task has 50 rows, rounded up to 60. A size of 100 allows 90 rows."""
    function = sized(lab, batch_size=30)
    table = make(lab, function, rows=200, rows_per_file=200)
    assert (
        table.plan_backfill("v", udf=function, task_size=task_size, concurrency=2).total_tasks
        == tasks
    )
    table.backfill("v", task_size=task_size, concurrency=2)
    assert [len(rows) for rows in calls_of(lab)] == [30, 30, 30, 30, 30, 30, 20]


@pytest.mark.parametrize("iterates", [False, True])
def test_an_error_fails_its_own_fragment_and_repeats_one_batch(
    lab: InlineLab, iterates: bool
) -> None:
    function = sized(lab, bad=frozenset([23]), iterates=iterates, batch_size=20, checkpoint_size=20)
    table = make(lab, function, rows=60, rows_per_file=5)
    with pytest.raises(
        BackfillIncompleteError, match=r"11 of 12 fragments done; fragment 4: .*row 23"
    ):
        table.backfill("v", task_size=1000)
    calls = calls_of(lab)
    if not iterates:
        assert calls[:2] == [list(range(20)), list(range(20, 40))]
        assert calls[2:6] == [list(range(first, first + 5)) for first in (20, 25, 30, 35)]
        assert calls[6:] == [list(range(40, 60))]
    assert values(table, "v") == {
        row: (None if row in range(20, 25) else -row,) for row in range(60)
    }
    (error,) = table.get_errors()
    assert (error.fragment_id, error.error_message, error.outcome) == (4, "row 23", "failed")


def test_a_single_row_of_a_call_is_the_row_of_its_error(lab: InlineLab) -> None:
    table = make(
        lab,
        sized(lab, bad=frozenset([23]), batch_size=1, checkpoint_size=20),
        rows=60,
        rows_per_file=5,
    )
    with pytest.raises(BackfillIncompleteError, match=r"row address 17179869187"):
        table.backfill("v", task_size=1000)
    assert [error.row_address for error in table.get_errors()] == [4 << 32 | 3]


def test_skipped_rows_are_recorded_with_their_addresses(lab: InlineLab) -> None:
    function = sized(
        lab,
        bad=frozenset([7, 23]),
        batch_size=20,
        on_error=skip_on_error(),
        sort_batch_by=pc.negate,
    )
    table = make(lab, function, rows=60, rows_per_file=5)
    result = table.backfill("v", task_size=1000)
    assert (result.status, result.rows_computed, result.rows_skipped) == ("DONE", 58, 2)
    assert {error.row_address for error in table.get_errors()} == {1 << 32 | 2, 4 << 32 | 3}
    assert values(table, "v") == {row: (None if row in (7, 23) else -row,) for row in range(60)}


def test_after_a_death_only_the_batches_without_a_checkpoint_run_again(lab: InlineLab) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    table = make(lab, sized(lab, batch_size=20, checkpoint_size=20), rows=100, rows_per_file=5)
    with pytest.raises(KeyboardInterrupt), acting(lab.uri, 47, interrupt):
        table.backfill("v", task_size=1000, batch_checkpoint_flush_interval_seconds=0)
    assert [rows[0] for rows in calls_of(lab)] == [0, 20, 40]
    result = lab.table().backfill("v", task_size=1000, batch_checkpoint_flush_interval_seconds=0)
    assert [rows[0] for rows in calls_of(lab)] == [40, 60, 80]
    assert (result.rows_computed, result.rows_from_checkpoint) == (60, 40)
    assert not has_threads()


def test_a_missing_input_file_fails_its_own_fragment(lab: InlineLab) -> None:
    table = make(lab, sized(lab, batch_size=20), rows=60, rows_per_file=5)
    broken = table.to_lance().get_fragments()[4].data_files()[0].path
    Path(lab.uri, "data", broken).unlink()
    with pytest.raises(BackfillIncompleteError, match="11 of 12 fragments done; fragment 4: "):
        table.backfill("v", task_size=1000)
    assert sorted(row for rows in calls_of(lab) for row in rows) == [
        row for row in range(60) if row // 5 != 4
    ]
    assert not has_threads()


def test_reading_and_writing_go_on_during_a_call(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call waits for the next read and the last write: without overlap, both waits are in vain."""
    table = make(lab, sized(lab, batch_size=10, checkpoint_size=10), rows=60, rows_per_file=10)
    next_is_read, last_is_written = threading.Event(), threading.Event()
    threads: dict[str, str] = {}
    waits: dict[str, bool] = {}
    read, append = InputReader.batches, ColumnFile.append

    def reading(self: InputReader, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(self, *arguments, **options):
            if batch.column(0)[0].as_py() == 30:
                next_is_read.set()
            threads["read"] = threading.current_thread().name
            yield batch

    def appending(self: ColumnFile, offsets: Any, batch: pa.RecordBatch) -> None:
        append(self, offsets, batch)
        threads["write"] = threading.current_thread().name
        last_is_written.set()

    def wait_for_both() -> None:
        threads["call"] = threading.current_thread().name
        waits["read"], waits["write"] = next_is_read.wait(20), last_is_written.wait(20)

    monkeypatch.setattr(InputReader, "batches", reading)
    monkeypatch.setattr(ColumnFile, "append", appending)
    with acting(lab.uri, 20, wait_for_both):
        table.backfill("v", task_size=1000)
    assert waits == {"read": True, "write": True}
    assert len(set(threads.values())) == 3


def test_the_next_batch_is_in_the_process_of_the_udf_during_a_call(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call waits for the next batch. After an error, this batch has no call before its turn."""
    folder, share, run = lab.log.parent, UdfRunner.share, UdfRunner._run_batch
    joined: list[weakref.ref[pa.RecordBatch]] = []

    def running(self: UdfRunner, *arguments: Any) -> BatchResult:
        # Only the shared copy of a batch exists during the call.
        assert [batch() for batch in joined] == [None] * len(joined)
        return run(self, *arguments)

    def sharing(self: UdfRunner, batch: pa.RecordBatch) -> pa.RecordBatch:
        shared = share(self, batch)
        assert shared is not batch
        joined.append(weakref.ref(batch))
        (folder / f"shared-{batch.column(0)[0].as_py()}").touch()
        return shared

    class Negate:
        def __init__(self, log: str) -> None:
            self.log = log

        def setup(self) -> None: ...

        def __call__(self, id: pa.Array) -> pa.Array:
            rows = id.to_pylist()
            with open(self.log, "a") as file:
                file.write(",".join(map(str, rows)) + "\n")
            following = Path(self.log).parent / f"shared-{rows[0] + 10}"
            deadline = time.monotonic() + 20
            while rows[0] < 80 and not following.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            if rows[0] == 70:
                raise ValueError("row 70")
            return pa.array([-row for row in rows], pa.int64())

    monkeypatch.setattr(UdfRunner, "share", sharing)
    monkeypatch.setattr(UdfRunner, "_run_batch", running)
    monkeypatch.setattr(shared_batch, "_LEAST_BYTES", 0)
    make_udf = udf(Negate, data_type=pa.int64(), version="1", batch_size=10, checkpoint_size=10)
    table = make(lab, make_udf(str(lab.log)), rows=100, rows_per_file=10)
    with pytest.raises(BackfillIncompleteError, match="9 of 10 fragments done; fragment 7: "):
        table.backfill("v", task_size=1000)
    assert calls_of(lab) == [list(range(first, first + 10)) for first in range(0, 100, 10)]
    assert values(table, "v") == {row: (None if row // 10 == 7 else -row,) for row in range(100)}


@pytest.mark.parametrize(("prefetch_batches", "most"), [(1, 20), (None, 30)])
def test_a_task_reads_no_further_ahead_than_prefetch_batches(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch, prefetch_batches: int | None, most: int
) -> None:
    """By default 2 batches, and one that the reader waits with."""
    function = sized(lab, batch_size=10, checkpoint_size=10, prefetch_batches=prefetch_batches)
    table = make(lab, function, rows=200, rows_per_file=10)
    read, reads, ahead = InputReader.batches, list[int](), list[int]()

    def reading(self: InputReader, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(self, *arguments, **options):
            reads.append(batch.num_rows)
            yield batch

    def note() -> None:
        threading.Event().wait(0.3)
        ahead.append(sum(reads) - 110)

    monkeypatch.setattr(InputReader, "batches", reading)
    with acting(lab.uri, 100, note):
        table.backfill("v", task_size=1000)
    assert most - 20 < ahead[0] <= most


def test_ranges_read_at_once_may_be_larger_than_expected(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small rows precede large rows. A task holds a part of each large range, and not the ranges."""
    monkeypatch.setattr(row_stream, "is_local", lambda _: False)
    monkeypatch.setattr(row_stream, "_READ_BYTES", 1 << 17)
    monkeypatch.setattr(row_stream, "_SMALL_READ_BYTES", 1 << 14)
    uri, read, large_parts, ahead = lab.uri, InputReader.batches, list[int](), list[int]()

    def measure(id: pa.Array, text: pa.Array) -> pa.Array:
        from tests.support.inline_jobs import act_at

        for row in id.to_pylist():
            act_at(uri, row)
        return pc.utf8_length(text).cast(pa.int64())

    def reading(self: InputReader, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(self, *arguments, **options):
            large_parts.extend([batch.nbytes] if batch.nbytes > 1 << 15 else [])
            yield batch

    def note() -> None:
        threading.Event().wait(0.2)
        ahead.append(len(large_parts))

    table = lab.make(
        pa.table({"id": range(640), "text": ["x"] * 256 + ["x" * 4096] * 384}), rows_per_file=64
    )
    table.add_columns(
        {
            "v": udf(
                measure,
                data_type=pa.int64(),
                version="1",
                batch_size=8,
                checkpoint_size=8,
                prefetch_batches=1,
            )
        }
    )
    monkeypatch.setattr(InputReader, "batches", reading)
    with acting(lab.uri, 256, note):
        table.backfill("v", task_size=1000)
    assert 4 <= ahead[0] <= 10 < len(large_parts)
    assert values(table, "v") == {row: (1 if row < 256 else 4096,) for row in range(640)}


def test_a_value_that_cannot_be_written_fails_its_own_fragment(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(lab, sized(lab, batch_size=20), rows=60, rows_per_file=5)
    append = ColumnFile.append

    def appending(self: ColumnFile, offsets: Any, batch: pa.RecordBatch) -> None:
        if batch.column(0)[0].as_py() == -20:
            raise RuntimeError("no such value")
        append(self, offsets, batch)

    with monkeypatch.context() as patches:
        patches.setattr(ColumnFile, "append", appending)
        with pytest.raises(
            BackfillIncompleteError, match=r"11 of 12 fragments done; fragment 4: .*no such value"
        ):
            table.backfill("v", task_size=1000)
    assert len(calls_of(lab)) == 3
    assert table.backfill("v").rows_from_checkpoint == 5
    assert calls_of(lab) == []


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_a_checkpoint_that_cannot_be_written_fails_its_own_fragment(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    table = make(lab, sized(lab, batch_size=20), rows=60, rows_per_file=5)
    write = CheckpointStore.write

    def writing(self: CheckpointStore, *arguments: Any, values: pa.Array, **options: Any) -> Any:
        if values[0].as_py() == -20:
            raise kind("no such checkpoint")
        return write(self, *arguments, values=values, **options)

    monkeypatch.setattr(CheckpointStore, "write", writing)
    with pytest.raises(
        BackfillIncompleteError, match=r"11 of 12 fragments done; fragment 4: .*no such checkpoint"
    ):
        table.backfill("v", task_size=1000, batch_checkpoint_flush_interval_seconds=0)
    assert len(calls_of(lab)) == 3


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_values_are_those_of_the_function(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows, rows_per_file = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    bad = data.draw(st.frozensets(st.integers(0, 60), max_size=3))
    skips = data.draw(st.booleans())
    options = {
        "batch_size": data.draw(st.one_of(st.none(), st.just("auto"), st.integers(1, 70))),
        "sort_batch_by": data.draw(st.sampled_from([None, pc.negate])),
        "checkpoint_size": data.draw(st.one_of(st.none(), st.integers(1, 70))),
        "iterates": data.draw(st.booleans()),
        "prefetch_batches": data.draw(st.integers(1, 3)),
        "on_error": skip_on_error() if skips else None,
    }
    threads = data.draw(st.sampled_from([1, 1, 3]))
    with without_spark(tmp_path_factory.mktemp("lab")) as lab:
        table = make(lab, sized(lab, bad=bad, **options), rows=rows, rows_per_file=rows_per_file)
        bad_rows = {row for row in bad if row < rows}
        failed = set() if skips else {row // rows_per_file for row in bad_rows}
        try:
            result = table.backfill(
                "v", task_size=data.draw(st.integers(10, 100)), intra_applier_concurrency=threads
            )
        except BackfillIncompleteError as error:
            assert failed
            result = error.result
        assert set(result.fragments_failed) == failed
        lost = {row for row in range(rows) if row // rows_per_file in failed} | (
            bad_rows if skips else set()
        )
        assert values(table, "v") == {row: (None if row in lost else -row,) for row in range(rows)}
        assert result.rows_skipped == (len(bad_rows) if skips else 0)
        assert not has_threads()


def test_the_result_tells_the_time_of_each_stage(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = InputReader.batches

    def reading(self: InputReader, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        time.sleep(0.2)
        yield from read(self, *arguments, **options)

    class Slow:
        def setup(self) -> None:
            time.sleep(0.4)

        def __call__(self, id: pa.Array) -> pa.Array:
            time.sleep(0.3)
            return id

    table = make(lab, udf(Slow, data_type=pa.int64(), version="1")(), rows=10, rows_per_file=10)
    monkeypatch.setattr(InputReader, "batches", reading)
    seconds = table.backfill("v", checkpoint_size=10).seconds
    assert min(seconds["read"], seconds["wait"]) >= 0.2
    assert seconds["load"] >= 0.4
    assert seconds["compute"] >= 0.3
    assert (seconds["limit"], seconds["write"] > 0, seconds["total"] >= 0.9) == (0, True, True)


def test_a_batch_of_an_async_class_has_four_rows_for_each_slot(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch waits for the last call of a batch, also if each batch takes 20 seconds.

    The first batch of a task has a row for each slot. A smaller checkpoint is a smaller batch.
    """
    record = AdaptiveSize.record
    monkeypatch.setattr(AdaptiveSize, "record", lambda size, rows, _: record(size, rows, 20.0))

    class Negate:
        async def setup(self) -> None:
            self.factor = -1

        async def __call__(self, id: int) -> int:
            if id == 18:
                raise ValueError("row 18")
            return self.factor * id

    negate = udf(Negate, max_in_flight=4, version="1")()
    table = make(lab, negate, rows=40, rows_per_file=40)
    for checkpoint_size, rows in [(None, 4), (8, 12)]:
        with pytest.raises(BackfillIncompleteError, match="row address 18"):
            table.backfill(
                "v",
                task_size=40,
                checkpoint_size=checkpoint_size,
                batch_checkpoint_flush_interval_seconds=0,
            )
        assert table.plan_backfill("v").rows_from_checkpoint == rows


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "threads"])
def test_the_end_of_an_allowance_keeps_the_results_of_calls_in_progress(
    tmp_path: Path, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = InlineScheduler.run

    def run_limited(
        scheduler: InlineScheduler, tasks: Sequence[Task], refresh_s: float
    ) -> Iterator[list[RangeOutcome]]:
        limits = TaskLimits(calls=40)
        return run(scheduler, [replace(task, limits=limits) for task in tasks], refresh_s)

    monkeypatch.setattr(InlineScheduler, "run", run_limited)
    with without_spark(tmp_path) as lab:
        log = str(lab.log)

        def note(id: int) -> int:
            import time

            with open(log, "a") as file:
                file.write(f"{id}\n")
            time.sleep(0.01)
            return -id

        async def note_later(id: int) -> int:
            return note(id)

        function = udf(note_later if is_async else note, data_type=pa.int64(), version="1")
        table = make(lab, function, rows=80, rows_per_file=20)
        table.backfill(
            "v",
            task_size=80,
            checkpoint_size=20,
            intra_applier_concurrency=1 if is_async else 4,
        )
        assert sorted(calls_of(lab)) == [[row] for row in range(80)]
        assert values(table, "v") == {row: (-row,) for row in range(80)}
