"""The writer's three steps, called directly: several concurrent jobs on one table, without a JVM."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    OptionError,
    SchemaMismatchError,
    TableUnwritableError,
)
from lance_spark.objects import LanceObjects
from lance_spark.staging import area, data_files
from lance_spark.staging.area import Staging
from lance_spark.staging.late_attempt import LateAttemptError
from lance_spark.staging.orphans import remove_orphans
from lance_spark.write import row_write
from lance_spark.write.append_writer import LanceAppendWriter, RowsWritten
from tests.lance_spark.write import appends
from tests.lance_spark.write.appends import (
    ROWS,
    batches,
    files_in,
    ids_in,
    plan,
    unused_files,
    uri_of,
    with_markers,
    write,
)

pytestmark = pytest.mark.sample(1, tests=2)

LATER = timedelta(0)
"""An age that every job has reached, since ids count whole seconds."""

STORES = {"local": "", "object store": "file-object-store://"}
"""Lance treats a location of the second scheme as an object store, although its objects are local files."""


@pytest.fixture(params=STORES)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location without a table, on a local file system and on an object store."""
    monkeypatch.setattr(appends, "prefix", STORES[request.param])
    # Attempts check the job after each file, as on a local file system.
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    return tmp_path / "folder" / "table.lance"


@pytest.fixture
def local_path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "table.lance"


def test_append_creates_then_appends_and_overwrite_keeps_the_old_version(path: Path) -> None:
    write(path, 1, 2)
    write(path, 3)
    write(path, 9, overwrite=True)

    assert [ids_in(path, v) for v in (1, 2, 3)] == [[1, 2], [1, 2, 3], [9]]
    assert lance.dataset(str(path)).has_stable_row_ids
    assert unused_files(path) == set()


@pytest.mark.sample(1)
def test_all_tasks_of_a_job_become_one_version_in_the_order_of_the_tasks(path: Path) -> None:
    job = plan(path)
    messages = [job.write(batches(i, i + 100)) for i in range(5)]
    job.commit([messages[0], None, *messages[1:], job.write(batches())])

    dataset = lance.dataset(str(path))
    assert dataset.version == 1
    assert dataset.to_table()["id"].to_pylist() == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("messages", [[], [None], ["empty"]])
def test_no_rows_create_an_empty_table_of_the_right_format(
    path: Path, messages: list[str | None], version: str
) -> None:
    job = plan(path, data_storage_version=version)
    job.commit([None if m is None else job.write(batches()) for m in messages])

    dataset = lance.dataset(str(path))
    assert (dataset.version, dataset.count_rows(), dataset.schema.names) == (1, 0, ["id", "s"])
    assert dataset.data_storage_version == version
    assert dataset.has_stable_row_ids


def test_no_rows_append_no_version_but_overwrite_with_an_empty_one(path: Path) -> None:
    write(path, 1)
    write(path)
    assert lance.dataset(str(path)).version == 1
    write(path, overwrite=True)
    assert (lance.dataset(str(path)).version, ids_in(path), ids_in(path, 1)) == (2, [], [1])


def test_of_two_concurrent_creations_the_second_becomes_an_append(path: Path) -> None:
    first, second = plan(path), plan(path)
    messages = [first.write(batches(1)), second.write(batches(2))]
    first.commit(messages[:1])
    second.commit(messages[1:])
    assert ids_in(path) == [1, 2]
    assert ids_in(path, 1) == [1]


def test_a_creation_that_finds_a_table_of_other_columns_is_refused_and_leaves_nothing(path: Path) -> None:
    other_schema = StructType([StructField("id", StringType())])
    first, second = plan(path, schema=other_schema), plan(path)
    first.commit([first.write(iter([pa.record_batch({"id": pa.array(["a"])})]))])
    message = second.write(batches(2))
    with pytest.raises(CommitConflictError) as caught:
        second.commit([message])
    assert caught.value.retryable
    assert lance.dataset(str(path)).to_table().to_pylist() == [{"id": "a"}]
    assert unused_files(path) == set()


def test_two_concurrent_overwrites_make_two_versions(path: Path) -> None:
    write(path, 0)
    first, second = plan(path, overwrite=True), plan(path, overwrite=True)
    messages = [first.write(batches(1)), second.write(batches(2))]
    first.commit(messages[:1])
    second.commit(messages[1:])
    assert [ids_in(path, v) for v in (1, 2, 3)] == [[0], [1], [2]]


def test_an_append_concurrent_with_an_overwrite_of_equal_columns_adds_to_it(path: Path) -> None:
    write(path, 0)
    appending = plan(path)
    message = appending.write(batches(5))
    write(path, 1, overwrite=True)
    appending.commit([message])
    assert ids_in(path) == [1, 5]


def test_an_append_concurrent_with_a_new_column_has_null_there(path: Path) -> None:
    write(path, 0)
    appending = plan(path)
    message = appending.write(batches(5))
    lance.dataset(str(path)).add_columns({"extra": "id * 2"})
    appending.commit([message])
    assert lance.dataset(str(path)).to_table(["id", "extra"]).to_pylist() == [
        {"id": 0, "extra": 0},
        {"id": 5, "extra": None},
    ]


@pytest.mark.parametrize("change", ["drop", "cast", "rename", "other"])
def test_an_append_concurrent_with_a_changed_column_is_refused_and_leaves_nothing(path: Path, change: str) -> None:
    write(path, 0)
    appending = plan(path)
    message = appending.write(batches(5))
    dataset = lance.dataset(str(path))
    if change == "drop":
        dataset.drop_columns(["s"])
    elif change == "cast":
        dataset.alter_columns({"path": "s", "data_type": pa.large_string()})
    elif change == "rename":
        dataset.alter_columns({"path": "s", "name": "t"})
    else:
        dataset.drop_columns(["s"])
        lance.dataset(str(path)).add_columns({"new": "cast(id as string)"})
    before = lance.dataset(str(path)).version
    with pytest.raises(CommitConflictError, match="'s'"):
        appending.commit([message])
    assert lance.dataset(str(path)).version == before
    assert unused_files(path) == set()


@pytest.mark.sample(1)
def test_an_append_to_a_table_that_was_deleted_meanwhile_is_refused(path: Path) -> None:
    write(path, 0)
    dataset = lance.dataset(str(path))
    dataset.drop_columns(["s"])
    appending = plan(path, schema=StructType([ROWS["id"]]))
    message = appending.write(iter([pa.record_batch({"id": pa.array([1])})]))
    for version in (path / "_versions").iterdir():
        version.unlink()
    with pytest.raises(CommitConflictError, match="deleted"):
        appending.commit([message])


def test_an_abort_of_a_creation_leaves_no_folder(local_path: Path) -> None:
    job = plan(local_path)
    message = job.write(batches(1))
    assert files_in(local_path)
    job.abort([message, None])
    assert not local_path.parent.exists()
    assert local_path.parent.parent.exists()


def test_an_abort_keeps_folders_that_were_there_before(local_path: Path) -> None:
    local_path.mkdir(parents=True)
    job = plan(local_path)
    job.write(batches(1))
    job.abort([])
    assert list(local_path.iterdir()) == []


def test_attempts_that_spark_forgets_leave_nothing_behind(path: Path) -> None:
    write(path, 0)
    job = plan(path, max_rows_per_file="1")
    job.write(batches(1, 2))  # a complete attempt that was lost

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(3, 4)
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="input is gone"):
        job.write(failing())
    killed = _killed_task(path, job)
    assert killed < 0
    assert appends.prefix or any(".tmp" in name for name in files_in(path))  # leftovers of a killed process
    job.commit([job.write(batches(1, 2))])

    assert ids_in(path) == [0, 1, 2]
    assert unused_files(path) == set()
    assert appends.prefix or not (path / "_lance_spark").exists()


def _killed_task(path: Path, job: LanceAppendWriter) -> int:
    """Runs the job's task in another process, which kills itself after two and a half files."""
    script = textwrap.dedent("""
        import os, pickle, signal, sys
        from pathlib import Path
        import pyarrow as pa
        def batches():
            for i in range(3):
                yield pa.record_batch({"id": pa.array([100 + i]), "s": pa.array(["x"])})
            # The writer opens the third file when it gets the third batch; a batch of two rows keeps the fourth open.
            os.kill(os.getpid(), signal.SIGKILL)
        job = pickle.loads(Path(sys.argv[1]).read_bytes())
        object.__setattr__(job, "options", type(job.options)(path=job.options.path, max_rows_per_file=2))
        job.write(batches())
    """)
    sent = path.parent / "job.pickle"
    sent.write_bytes(pickle.dumps(job))
    process = subprocess.run(
        [sys.executable, "-c", script, str(sent)], env=_environment(), check=False, capture_output=True
    )
    sent.unlink()
    return process.returncode


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def test_an_attempt_that_closes_its_file_while_the_job_sweeps_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(path)
    message = job.write(batches(1))
    late = job.staging.begin_attempt().open_data_file(pa.schema([("id", pa.int64())]), version="2.2")
    late.write_batch(pa.record_batch({"id": pa.array([2])}))
    find = area.find_data_files

    def find_then_close(*arguments: Any, **options: Any) -> dict[str, list[str]]:
        files = find(*arguments, **options)
        with pytest.raises(CommitError, match="came too late"):
            late.close()
        return files

    monkeypatch.setattr(area, "find_data_files", find_then_close)
    job.commit([message])
    assert ids_in(path) == [1]
    assert unused_files(path) == set()


def test_an_attempt_that_notices_the_end_of_its_job_first_leaves_the_others_to_be_found(path: Path) -> None:
    write(path, 0)
    job = plan(path, max_rows_per_file="1")
    message = job.write(batches(1, 2))
    late = job.staging.begin_attempt().open_data_file(pa.schema([("id", pa.int64())]), version="2.2")
    late.write_batch(pa.record_batch({"id": pa.array([3])}))
    assert not job.staging.close_job()  # the first step of an abort
    with pytest.raises(CommitError, match="came too late"):
        late.close()
    job.abort([message])
    assert ids_in(path) == [0]
    assert unused_files(path) == set()
    assert appends.prefix or not (path / "_lance_spark").exists()


def test_the_end_of_a_job_waits_for_attempts_that_rely_on_their_last_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 1.0)
    path = tmp_path / "table.lance"
    write(path, 0)
    job = with_markers(plan(path))
    attempt = job.staging.begin_attempt()
    schema = pa.schema([("id", pa.int64())])
    files = [attempt.open_data_file(schema, version="2.2") for _ in range(3)]
    files[0].write_batch(pa.record_batch({"id": [1]}))
    assert not job.staging.close_job()  # the first step of an abort
    assert files[0].close() == 1, "the check at the begin of the attempt still holds"
    began = time.monotonic()
    job.abort([])
    assert time.monotonic() - began >= 1.0
    assert unused_files(path) == set()
    files[2].write_batch(pa.record_batch({"id": [2]}))
    with pytest.raises(CommitError, match="came too late"):
        files[2].close()
    assert unused_files(path) == set()


@pytest.mark.parametrize("check_s", [0.0, 60.0])
def test_an_attempt_without_a_marker_deletes_its_files_at_its_end_if_its_job_has_ended(
    check_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", check_s)
    path = tmp_path / "table.lance"
    write(path, 0)
    job = plan(path, max_rows_per_file="1")
    message = job.write(batches(1))

    def late_rows() -> Iterator[pa.RecordBatch]:
        yield from batches(2, 3)
        job.commit([message])
        assert (ids_in(path), unused_files(path)) == ([0, 1], set()), "the end of the job finds the first file"
        yield from batches(4, 5)

    with pytest.raises(CommitError, match="came too late"):
        job.write(late_rows())
    assert (ids_in(path), unused_files(path)) == ([0, 1], set())


def remove_empty_folders(path: Path) -> None:
    """Deletes the empty folders of all jobs, which an object store would not have."""
    for folder, _, _ in os.walk(path / "_lance_spark", topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def test_a_cleanup_finds_the_files_of_attempts_without_markers_after_a_death_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    monkeypatch.setattr(area, "LONGEST_COMMIT", timedelta(0))
    path = tmp_path / "table.lance"
    write(path, 0)
    delete, deletions = LanceObjects.delete, itertools.count()

    def die(objects: LanceObjects, name: str) -> None:
        if next(deletions) == steps:
            raise KeyboardInterrupt
        delete(objects, name)

    for end in ("abort", "commit", "commit without rows"):
        for steps in range(8):
            job = plan(path)
            job.write(batches(1))  # a duplicate
            message = job.write(batches() if end == "commit without rows" else batches(1))
            deletions = itertools.count()
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(LanceObjects, "delete", die)
                job.abort([]) if end == "abort" else job.commit([message])
            remove_empty_folders(path)
            for _ in range(2):  # the first cleanup notes the end of a job whose commit may be in progress
                remove_orphans(uri_of(path), older_than=LATER)
            assert unused_files(path) == set(), (end, steps)
    assert ids_in(path).count(1) >= 6


def test_an_attempt_that_goes_on_after_an_abort_deletes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.lance"
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.3)  # the time for which an attempt relies on a check
    write(path, 0)
    job = plan(path)
    attempt = job.staging.begin_attempt()
    file = attempt.open_data_file(pa.schema([("id", pa.int64())]), version="2.2")
    file.write_batch(pa.record_batch({"id": [1]}))
    job.abort([])
    with pytest.raises(LateAttemptError):
        file.close()
    assert unused_files(path) == set()


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("end", ["abort", "cleanup"])
def test_files_are_deleted_in_a_store_that_refuses_markers(
    end: str, marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.lance"
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    write(path, 0)
    job = with_markers(plan(path)) if marked else plan(path)
    job.write(batches(1))

    def refuse(objects: LanceObjects, name: str, data: bytes) -> None:
        raise TableUnwritableError(objects.uri, "quota exceeded")

    monkeypatch.setattr(LanceObjects, "put", refuse)
    if end == "abort":
        job.abort([])
    else:
        assert remove_orphans(uri_of(path), older_than=LATER) == 1
    assert unused_files(path) == set()


def test_a_cleanup_knows_the_files_of_attempts_until_it_closed_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.lance"
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    monkeypatch.setattr(area, "CHECK_S", 0.0)
    write(path, 0)
    job = with_markers(plan(path))
    messages, close_job = [job.write(batches(1))], Staging.close_job

    def close_late(staging: Staging) -> bool:
        if len(messages) == 1:
            messages.append(job.write(batches(2)))
            with monkeypatch.context() as patch:
                patch.setattr(row_write, "finish", lambda *_, **__: None)  # the driver is slow
                job.commit(messages)
        return close_job(staging)

    monkeypatch.setattr(Staging, "close_job", close_late)
    remove_orphans(uri_of(path), older_than=LATER)
    assert ids_in(path) == [0, 1, 2]


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("end", ["abort", "cleanup"])
def test_files_of_an_attempt_are_found_beside_its_unfinished_files(
    end: str, marked: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "prefix", STORES["object store"])
    write(path, 0)
    job = with_markers(plan(path)) if marked else plan(path)
    attempt = job.staging.begin_attempt()
    schema = pa.schema([("id", pa.int64())])
    files = [attempt.open_data_file(schema, version="2.2") for _ in range(area.OPEN_FILES)]
    files[-1].write_batch(pa.record_batch({"id": [1]}))
    files[-1].close()  # and then its process dies
    assert len(unused_files(path)) == 2 + marked, "the file and the markers"
    if end == "abort":
        job.abort([])
    else:
        assert remove_orphans(uri_of(path), older_than=LATER) == 1
    assert unused_files(path) == set()


def test_many_attempts_are_swept_by_one_listing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_PROBED_ATTEMPTS", 2)
    job = plan(path, max_rows_per_file="1")
    for i in range(4):
        job.write(batches(i, i + 10))
    job.commit([job.write(batches(7, 8))])
    assert ids_in(path) == [7, 8]
    assert unused_files(path) == set()


def test_a_commit_that_is_repeated_doubles_nothing(path: Path) -> None:
    job = plan(path)
    message = job.write(batches(1))
    job.commit([message])
    job.commit([message])
    assert ids_in(path) == [1]
    job.abort([message])  # Spark reports this if the reply of the commit was lost
    assert ids_in(path) == [1]


def test_a_lost_answer_keeps_the_files_and_an_abort_keeps_them_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, 0)
    job = plan(path)
    message = job.write(batches(1))

    def no_answer(*_: object, **__: object) -> object:
        raise CommitOutcomeUnknownError("no answer", uri=str(path))

    with monkeypatch.context() as patch:
        patch.setattr(row_write, "commit_rows", no_answer)
        with pytest.raises(CommitOutcomeUnknownError):
            job.commit([message])
    job.abort([message])
    assert {f"data/{name}" for name in message.file_names} <= files_in(path)
    # The commit may still land, and then all its files must exist.
    job.staging.open_job()
    job.commit([message])
    assert ids_in(path) == [0, 1]
    assert unused_files(path) == set()


def test_an_abort_after_a_commit_keeps_the_version_and_deletes_the_rest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 0)
    job = plan(path)
    job.write(batches(1))  # a duplicate
    message = job.write(batches(1))
    with monkeypatch.context() as patch:
        patch.setattr(row_write, "finish", lambda *_, **__: None)
        patch.setattr(row_write, "finish_closed", lambda *_, **__: None)
        job.commit([message])  # and then its process dies, so Spark takes the job for failed
    assert unused_files(path)
    job.abort([message])
    assert ids_in(path) == [0, 1]
    assert unused_files(path) == set()


def test_an_abort_after_the_death_of_the_commit_process_deletes_uncommittable_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(area, "LONGEST_COMMIT", timedelta(0))
    write(path, 0)
    job = plan(path)
    message = job.write(batches(1))
    script = "import os, pickle, sys; pickle.load(sys.stdin.buffer).staging.begin_commit(); os._exit(9)"
    subprocess.run([sys.executable, "-c", script], input=pickle.dumps(job), env=_environment(), check=False)
    assert "_lance_spark" in {name.split("/")[0] for name in files_in(path)}
    job.abort([message])
    if appends.prefix:
        # The last request of the dead process may still be on its way to the store.
        assert {f"data/{name}" for name in message.file_names} <= files_in(path)
        assert remove_orphans(uri_of(path), older_than=LATER) == 1
    assert unused_files(path) == set()


def test_a_commit_whose_files_were_cleaned_up_is_refused(path: Path) -> None:
    write(path, 0)
    job = plan(path)
    message = job.write(batches(1))
    (path / "data" / message.file_names[0]).unlink()
    with pytest.raises(CommitError, match="1 of 1 data files"):
        job.commit([message])
    assert (lance.dataset(str(path)).version, unused_files(path)) == (1, set())


@pytest.mark.sample(1)
def test_cleanup_finds_what_a_dead_driver_left_and_spares_what_a_version_references(path: Path) -> None:
    old = write(path, 0)
    (old_file,) = lance.dataset(str(path)).get_fragments()[0].data_files()
    write(path, 7, overwrite=True)
    _leave_marker(path, old, old_file.path)  # only an old version references this file
    dead = plan(path)
    message = dead.write(batches(1))
    dead.write(batches(2))
    half = plan(path)
    half_done = half.write(batches(3))
    half.commit([half_done])
    _leave_marker(path, half, half_done.file_names[0])

    assert remove_orphans(uri_of(path), older_than=timedelta(hours=1)) == 0
    assert len(unused_files(path)) == (5 if appends.prefix else 7), "files, markers of jobs, and of attempts"
    assert remove_orphans(uri_of(path), older_than=LATER) == 2
    assert unused_files(path) == set()
    assert (ids_in(path, 1), ids_in(path, 2), ids_in(path)) == ([0], [7], [3, 7])
    with pytest.raises(CommitError, match="cleaned up"):
        dead.commit([message])


def test_cleanup_of_a_branch_spares_files_that_only_a_branch_of_it_references(path: Path) -> None:
    write(path, 0)
    parent = path / "tree" / "parent"
    lance.dataset(str(path)).create_branch("parent")
    job = write(parent, 5)
    child = lance.dataset(str(path)).create_branch("child", ("parent", None))
    write(parent, 9, overwrite=True)
    (parent / "_versions" / f"{2**64 - 1 - 2}.manifest").unlink()  # version 2 is gone from the parent
    (file,) = child.get_fragments()[1].data_files()
    _leave_marker(parent, job, file.path)

    assert remove_orphans(uri_of(path), older_than=LATER) == 0 == remove_orphans(uri_of(parent), older_than=LATER)
    assert not [file for file in (parent / "_lance_spark").rglob("*") if file.is_file()]  # the sweep inspected the file
    assert child.to_table()["id"].to_pylist() == [0, 5]


def test_cleanup_spares_files_that_only_a_branch_references(path: Path) -> None:
    write(path, 0)
    job = write(path, 5)
    branch = lance.dataset(str(path)).create_branch("other")
    write(path, 9, overwrite=True)
    (path / "_versions" / f"{2**64 - 1 - 2}.manifest").unlink()  # version 2 is gone from the main branch
    (file,) = branch.get_fragments()[1].data_files()
    _leave_marker(path, job, file.path)

    assert remove_orphans(uri_of(path), older_than=LATER) == 0
    assert branch.to_table()["id"].to_pylist() == [0, 5]


def _leave_marker(path: Path, job: LanceAppendWriter, file: str) -> None:
    """Simulates the death of a job's driver between its commit and its sweep."""
    marker = path / "_lance_spark" / "staging" / job.staging.job_id / file.partition("-")[0] / "attempt"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text("{}")


def test_overwriting_keeps_what_belongs_to_the_table(path: Path) -> None:
    write(path, 0, data_storage_version="2.1", enable_stable_row_ids="false")
    dataset = lance.dataset(str(path))
    dataset.update_config({"owner": "me"})
    dataset.tags.create("first", 1)
    other_schema = StructType([StructField("k", IntegerType())])
    job = plan(path, overwrite=True, schema=other_schema)
    job.commit([job.write(iter([pa.record_batch({"k": pa.array([1], pa.int32())})]))])

    dataset = lance.dataset(str(path))
    assert dataset.to_table().to_pylist() == [{"k": 1}]
    assert dataset.data_storage_version == "2.1"
    assert dataset.get_fragments()[0].data_files()[0].file_minor_version == 1
    assert not dataset.has_stable_row_ids
    assert dataset.config() == {"owner": "me"}
    assert dataset.tags.list()["first"]["version"] == 1


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        ({"data_storage_version": "2.0"}, "2.2"),
        ({"enable_stable_row_ids": "false"}, "true"),
        ({"version": "3"}, "backfill"),
        ({"input_columns": "a"}, "backfill"),
        ({"s.arrow.fixed-size-list.size": "3"}, "string"),
        ({"s.lance.encoding": "blob"}, "string"),
        ({"nope.lance.encoding": "blob"}, "no such column"),
    ],
)
def test_an_option_that_contradicts_the_table_is_refused_and_says_what_the_table_has(
    path: Path, options: dict[str, str], expected_text: str
) -> None:
    write(path, 0)
    before = files_in(path)
    with pytest.raises(OptionError) as caught:
        plan(path, **options)
    assert caught.value.option in options
    assert expected_text in str(caught.value)
    assert files_in(path) == before


def test_column_options_that_the_table_has_may_be_repeated_in_any_case(path: Path) -> None:
    inner = pa.struct([pa.field("W", pa.list_(pa.int8(), 3))])
    blob = pa.field("B", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("V", pa.list_(pa.float32(), 2)), pa.field("S", inner), blob])
    lance.write_dataset(schema.empty_table(), path)
    values = StructType(
        [
            StructField("V", ArrayType(FloatType())),
            StructField("S", StructType([StructField("W", ArrayType(ByteType()))])),
            StructField("B", BinaryType()),
        ]
    )
    options = {"v.arrow.fixed-size-list.size": "2", "s.w.arrow.fixed-size-list.size": "3", "b.lance.encoding": "blob"}
    plan(path, schema=values, **options)
    with pytest.raises(OptionError, match=r"\[3\]"):
        plan(path, schema=values, **{"s.w.arrow.fixed-size-list.size": "4"})


def test_settings_that_the_table_has_may_be_repeated(path: Path) -> None:
    write(path, 0, data_storage_version="2.2", enable_stable_row_ids="true")
    write(path, 1, data_storage_version="stable", enable_stable_row_ids="true")
    assert ids_in(path) == [0, 1]


def test_a_dataframe_without_columns_or_with_doubled_ones_is_refused(path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match="no columns"):
        plan(path, schema=StructType([]))
    with pytest.raises(SchemaMismatchError, match="'id'"):
        plan(path, schema=StructType([ROWS["id"], ROWS["id"]]))
    assert not path.parent.exists()


def test_the_commit_message_and_the_job_are_kept_with_the_version(path: Path) -> None:
    job = write(path, 1, commit_message="nightly load")
    properties = lance.dataset(str(path)).read_transaction(1).transaction_properties
    assert "nightly load" in properties.values()
    assert job.staging.job_id in properties.values()


def test_files_are_rolled_over_by_rows(path: Path) -> None:
    write(path, *range(25), max_rows_per_file="10")
    assert [f.count_rows() for f in lance.dataset(str(path)).get_fragments()] == [10, 10, 5]


def test_a_message_is_a_small_picklable_value(path: Path) -> None:
    message = plan(path).write(batches(1))
    copy = pickle.loads(pickle.dumps(message))
    assert isinstance(copy, RowsWritten)
    assert copy == message
    assert len(pickle.dumps(message)) < 2000


@pytest.mark.long
def test_the_memory_of_a_task_does_not_grow_with_its_rows(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import pickle, resource, sys
        import numpy as np, pyarrow as pa
        job = pickle.load(sys.stdin.buffer)
        rng = np.random.default_rng(0)
        ends = pa.py_buffer(np.arange(0, 1_000_001, 100, dtype=np.int32))
        def batches():
            for i in range(int(sys.argv[1])):
                letters = pa.py_buffer(rng.integers(65, 90, 1_000_000, dtype=np.uint8))
                text = pa.StringArray.from_buffers(10_000, ends, letters)
                yield pa.record_batch({"id": pa.array(rng.integers(0, 1 << 62, 10_000)), "s": text})
        rows = job.write(batches()).rows
        print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """)
    used = {}
    for count in (40, 300):  # 43 MB and 320 MB
        job = pickle.dumps(plan(tmp_path / str(count)))
        process = subprocess.run(
            [sys.executable, "-c", script, str(count)], input=job, env=_environment(), check=True, capture_output=True
        )
        rows, kib = map(int, process.stdout.split())
        assert rows == count * 10_000
        used[count] = kib / 1024
    assert used[300] - used[40] < 60, f"MiB: {json.dumps(used)}"


@pytest.mark.sample(1)
def test_merge_schema_adds_the_columns_that_the_table_lacks(tmp_path: Path) -> None:
    write(tmp_path / "t", 1)
    wider = StructType([*ROWS, StructField("extra", DoubleType(), nullable=False), StructField("More", LongType())])
    with pytest.raises(SchemaMismatchError, match="extra: the table has no such column"):
        plan(tmp_path / "t", schema=wider)
    wrong = StructType([StructField("id", StringType()), *wider.fields[1:]])
    with pytest.raises(SchemaMismatchError, match="id: "):
        plan(tmp_path / "t", schema=wrong, mergeSchema="true")
    assert lance.dataset(str(tmp_path / "t")).version == 1
    job = plan(tmp_path / "t", schema=wider, mergeSchema="true")
    rows = pa.record_batch({"id": [2], "s": ["b"], "extra": [0.5], "More": pa.array([None], pa.int64())})
    job.commit([job.write(iter([rows]))])
    dataset = lance.dataset(str(tmp_path / "t"))
    assert dataset.version == 3 and [field.nullable for field in dataset.schema] == [True] * 4
    assert dataset.to_table().to_pylist() == [
        {"id": 1, "s": "row 1", "extra": None, "More": None},
        {"id": 2, "s": "b", "extra": 0.5, "More": None},
    ]
    assert plan(tmp_path / "t", schema=wider, mergeSchema="true").ref.version == 3  # without a new column
    write(tmp_path / "new", 1, mergeSchema="true")
    write(tmp_path / "t", 5, overwrite=True, mergeSchema="true")
    assert lance.dataset(str(tmp_path / "t")).schema.names == ["id", "s"]
