"""Every operation with a commit, on a failing store: lost replies, resets, outages, throttling and expired
credentials.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from lance_spark import dataset_retries
from lance_spark.commit import store_check
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.errors import CommitError, LanceSparkError, TableUnreadableError
from lance_spark.jobs import history as late_ends
from lance_spark.jobs.history import JobHistory
from tests.object_stores.operations import (
    OPERATIONS,
    ROWS,
    StoreOperation,
    connection,
    make,
    on_spark,
    table_of,
)
from tests.object_stores.servers import fail, requests_of, s3_options
from tests.object_stores.stores import Store, StorePlace
from tests.support.processes import free_port
from tests.support.records import job_record
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.sample(1, tests=3)]

MANIFEST = r"^PUT (?!.*/probe/).*/_versions/\d+\.manifest"
"""The request of a commit, excluding commits that probe the store for conditional puts."""
ON_SPARK = [
    *("append", "backfill", "update", "delete", "merge", "load_columns", "compact_files"),
    *("create_scalar_index", "refresh"),
]
SAMPLE = ["create_table", "add_columns of a UDF", "job record"]
"""A commit of rows, a change committed by Lance itself, and an append to a side table."""
REPLY_SAMPLE = [
    *SAMPLE,
    "add",
    "backfill write",
    "compaction",
    "create_materialized_view",
    "drop_index",
    "rename",
]
"""The sample of the shortest test: an operation per kind of commit."""
WAITING_SAMPLE = ["add_columns of a UDF"]
"""The sample for tests with waits of seconds."""
TYPED = (LanceSparkError, RuntimeError, PySparkException)
"""Errors of a failing store. Spark wraps the error of a DataFrame write, and keeps its name and text."""


@pytest.fixture(autouse=True)
def healthy(failing: Store, outage_file: Path) -> Iterator[None]:
    """Ends all faults after each test, so that a failed test leaves no outage behind."""
    fail(failing.storage)
    yield
    outage_file.unlink(missing_ok=True)
    eventually(lambda: answers(failing), seconds=90)
    fail(failing.storage)
    dataset_retries._silent.clear()


@pytest.fixture
def outage_file(tmp_path: Path) -> Iterator[Path]:
    """A file; the outage lasts while the file exists."""
    path = tmp_path / "away"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes retries end at once."""
    for options in (dataset_retries.RETRIES, dataset_retries._FIRST):
        monkeypatch.setitem(options, "client_retry_timeout", "0")
    monkeypatch.setitem(dataset_retries.RETRIES, "lance_aimd_max_retries", "0")


def sampled(names: list[str], sample: list[str] = SAMPLE) -> list[object]:
    return [pytest.param(name, marks=() if name in sample else pytest.mark.long) for name in names]


def operation_named(name: str, request: pytest.FixtureRequest) -> StoreOperation:
    """Starts Spark only for operations with tasks on Spark."""
    if name in OPERATIONS:
        return OPERATIONS[name]
    return on_spark(request.getfixturevalue("spark"))[name]


def prepared(store: Store, operation: StoreOperation) -> tuple[StorePlace, int]:
    """Returns the place of the operation, and its version before."""
    place = store.place()
    if not operation.exists:
        dataset_retries.retry_options(place.uri, place.storage)
        return place, 0
    make(place)
    operation.prepare(place)
    return place, place.open().version


def check_done(place: StorePlace, operation: StoreOperation, before: int) -> None:
    """Checks that the operation took effect once, without leftovers."""
    assert operation.shows(place) == operation.expected
    assert place.open().version == before + operation.versions, (
        "it was committed twice, or not at all"
    )
    assert (
        operation.rewrites
        or {name for name in place.orphans() if name.startswith("data/")} == set()
    )


@pytest.mark.parametrize("name", sampled([*OPERATIONS, *ON_SPARK], REPLY_SAMPLE))
def test_an_operation_takes_effect_once_if_the_reply_to_its_manifest_is_lost(
    name: str, failing: Store, request: pytest.FixtureRequest
):
    operation = operation_named(name, request)
    place, before = prepared(failing, operation)
    fail(failing.storage, lose=MANIFEST)
    operation.act(place)
    fail(failing.storage)
    check_done(place, operation, before)


@pytest.mark.parametrize(
    "name", sampled([name for name in OPERATIONS if name != "job record"], ["add"])
)
def test_an_operation_takes_effect_once_if_the_store_goes_away_with_the_reply_to_its_manifest(
    name: str, failing: Store, monkeypatch: pytest.MonkeyPatch
):
    """Lance gives up before the store is back, and the commit loop looks for the commit.

    The lost reply is the reply to the last manifest: a compaction reserves numbers of fragments first. Measured with pylance 14: four attempts of a second each.
    """
    for option, value in (("client_retry_timeout", "1"), ("lance_aimd_max_retries", "0")):
        monkeypatch.setitem(dataset_retries.RETRIES, option, value)
    operation = OPERATIONS[name]
    place, before = prepared(failing, operation)
    fail(failing.storage, lose=MANIFEST, skip=max(operation.versions - 1, 0), away_s=7)
    operation.act(place)
    check_done(place, operation, before)


@pytest.mark.parametrize("name", sampled([*OPERATIONS, *ON_SPARK]))
def test_an_operation_takes_effect_once_if_connections_break_before_manifests(
    name: str, failing: Store, request: pytest.FixtureRequest
):
    operation = operation_named(name, request)
    place, before = prepared(failing, operation)
    fail(failing.storage, reset=MANIFEST, times=2)
    operation.act(place)
    fail(failing.storage)
    check_done(place, operation, before)


@pytest.mark.long
@pytest.mark.parametrize("name", [*OPERATIONS, *ON_SPARK])
def test_an_operation_takes_effect_once_whichever_reply_to_a_put_is_lost(
    name: str, failing: Store, request: pytest.FixtureRequest
):
    operation = operation_named(name, request)
    place, before = prepared(failing, operation)
    requests_of(failing.storage)
    operation.act(place)
    puts = sum(request.method == "PUT" for request in requests_of(failing.storage))
    check_done(place, operation, before)
    for skip in range(puts):
        place, before = prepared(failing, operation)
        fail(
            failing.storage,
            lose=f"^PUT .*{re.escape(place.uri.removeprefix('s3://').rpartition('/')[0])}",
            skip=skip,
        )
        operation.act(place)
        fail(failing.storage)
        check_done(place, operation, before)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        *((name, 5) for name in [*OPERATIONS, *ON_SPARK]),
        *((name, 60) for name in [*OPERATIONS, *ON_SPARK]),
    ],
)
@pytest.mark.long
def test_an_operation_outlasts_an_outage(
    name: str, seconds: int, failing: Store, request: pytest.FixtureRequest
):
    operation = operation_named(name, request)
    place, before = prepared(failing, operation)
    fail(failing.storage, down_s=seconds)
    began = time.monotonic()
    operation.act(place)
    assert time.monotonic() - began > seconds / 2
    check_done(place, operation, before)


@pytest.mark.parametrize("name", sampled([*OPERATIONS, *ON_SPARK]))
def test_an_operation_takes_effect_once_on_a_store_that_throttles(
    name: str, failing: Store, request: pytest.FixtureRequest
):
    operation = operation_named(name, request)
    place, before = prepared(failing, operation)
    fail(failing.storage, error_rate=0.2)
    operation.act(place)
    fail(failing.storage)
    check_done(place, operation, before)


@pytest.mark.parametrize(
    "name", sampled([*OPERATIONS, *ON_SPARK], ["add_columns of a UDF", "job record"])
)
def test_expired_credentials_are_a_typed_error_at_once_that_names_them(
    name: str, failing: Store, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(late_ends, "_RETRY_S", 0.2)
    operation = operation_named(name, request)
    place, before = prepared(failing, operation)
    fail(failing.storage, deny=True)
    began = time.monotonic()
    if name == "job record":
        operation.act(place)
    else:
        with pytest.raises(TYPED, match="credentials"):
            operation.act(place)
    assert time.monotonic() - began < 20
    fail(failing.storage)
    if name == "job record":
        eventually(lambda: not late_ends.kept_ends(place.ref.uri), seconds=30)
    assert (place.open().version if operation.exists else 0) == before
    assert not [path for path in place.objects() if not operation.exists and "_versions" in path]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "name", sampled([name for name in OPERATIONS if name != "job record"], WAITING_SAMPLE)
)
def test_a_store_that_stays_away_is_a_typed_error_and_nothing_is_half_written(
    name: str, failing: Store, outage_file: Path
):
    operation = OPERATIONS[name]
    place, before = prepared(failing, operation)
    fail(failing.storage, down_while=str(outage_file))
    with pytest.raises(LanceSparkError, match=r"does not answer|store failed|cannot be read"):
        operation.act(place)
    come_back(failing, outage_file)
    assert (place.open().version if operation.exists else 0) == before
    operation.act(place)
    assert operation.shows(place) == operation.expected


@pytest.mark.long
@pytest.mark.parametrize("name", ["add", "rename", "job record", *ON_SPARK])
def test_a_store_that_stays_away_is_a_typed_error_within_six_minutes(
    name: str, failing: Store, request: pytest.FixtureRequest, outage_file: Path
):
    operation = operation_named(name, request)
    place, before = prepared(failing, operation)
    visible_state = operation.shows(place)
    fail(failing.storage, down_while=str(outage_file))
    began = time.monotonic()
    if name == "job record":
        operation.act(place)
    else:
        with pytest.raises(TYPED):
            operation.act(place)
    assert 200 < time.monotonic() - began < 360
    come_back(failing, outage_file)
    assert place.open().version == before
    if name != "job record":
        assert operation.shows(place) == visible_state, "half of the operation is there"
        assert {record.status for record in table_of(place).list_jobs()} <= {"DEAD", "FAILED"}
        operation.act(place)
    eventually(lambda: operation.shows(place) == operation.expected, seconds=60)


@pytest.mark.usefixtures("impatient")
def test_the_end_of_a_job_is_written_when_the_store_answers_again(
    failing: Store, monkeypatch: pytest.MonkeyPatch, outage_file: Path
):
    monkeypatch.setattr(late_ends, "_RETRY_S", 0.5)
    place, _ = prepared(failing, OPERATIONS["add"])
    history = JobHistory(place.ref)
    history.save(job_record("late", status="RUNNING"))
    fail(failing.storage, down_while=str(outage_file))
    history.save(job_record("late"))
    assert [record.job_id for record in late_ends.kept_ends(place.ref.uri)] == ["late"]
    come_back(failing, outage_file)
    assert history.job("late").status == "DONE", "this process knows the end before it is written"
    eventually(lambda: not late_ends.kept_ends(place.ref.uri), seconds=30)
    assert [record.status for record in history.jobs()] == ["DONE"]


def come_back(store: Store, outage_file: Path) -> None:
    outage_file.unlink()
    eventually(lambda: answers(store), seconds=60)
    dataset_retries._silent.clear()


def answers(store: Store) -> bool:
    host, port = store.storage["aws_endpoint"].removeprefix("http://").split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def test_stores_that_never_answered_are_errors_within_20_seconds():
    """Three stores at once: a store without connections, and two silent stores. In sequence they would take longer."""
    with socket.socket() as first, socket.socket() as second, ThreadPoolExecutor(3) as threads:
        for listening in (first, second):
            listening.bind(("127.0.0.1", 0))
            listening.listen()
        ports = (free_port(), *(listening.getsockname()[1] for listening in (first, second)))
        places = [
            StorePlace(uri="s3://tables/x/t.lance", storage=s3_options(port)) for port in ports
        ]
        assert max(threads.map(seconds_until_refused, places)) < 20
        assert max(map(seconds_until_refused, places)) < 1, "a second call asks again at once"


def seconds_until_refused(place: StorePlace) -> float:
    began = time.monotonic()
    with pytest.raises(TableUnreadableError, match="does not answer"):
        connection(place).create_table("t", ROWS)
    return time.monotonic() - began


OPEN = "import sys; from lance_spark.dataset import DatasetRef; DatasetRef.at(sys.argv[1], eval(sys.argv[2])).open_latest()"


@pytest.mark.long
@pytest.mark.parametrize("is_known", [True, False])
def test_a_new_process_of_spark_outlasts_an_outage_if_the_application_has_an_answer(
    is_known: bool, failing: Store, tmp_path: Path
):
    """Spark plans and commits in new processes; a first request of any process ends after seven seconds."""
    place, _ = prepared(failing, OPERATIONS["add"])
    command = [sys.executable, "-c", OPEN, place.uri, repr(place.storage)]
    folder = tmp_path / "blockmgr-0"
    folder.mkdir()
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(folder)}
    if is_known:
        subprocess.run(command, env=environment, check=True, timeout=60)
    fail(failing.storage, down_s=20)
    began = time.monotonic()
    process = subprocess.run(
        command, env=environment, check=False, timeout=120, capture_output=True, text=True
    )
    assert (process.returncode == 0) == is_known, process.stderr
    assert is_known or (
        time.monotonic() - began < 20 and "the store does not answer" in process.stderr
    )


def test_retries_that_the_user_set_stay_as_they_are(failing: Store):
    place = failing.place()
    options = {**place.storage, "Client_Max_Retries": "2"}
    assert dataset_retries.retry_options("/local/t.lance", {}) is None
    options_given = dataset_retries.retry_options(place.uri, options)
    assert (
        options_given is not None
        and options_given["Client_Max_Retries"] == "2"
        and "client_max_retries" not in options_given
    )
    assert options_given["client_retry_timeout"] == dataset_retries.RETRIES["client_retry_timeout"]


def test_a_process_asks_a_store_once(failing: Store):
    place = failing.place()
    dataset_retries._answered.clear()
    requests_of(failing.storage)
    for _ in range(3):
        dataset_retries.retry_options(place.uri, place.storage)
    assert [(request.method, request.status) for request in requests_of(failing.storage)] == [
        ("HEAD", 404)
    ]


def test_a_first_write_without_credentials_names_the_credentials_and_nothing_unsafe(failing: Store):
    place = failing.place()
    store_check._verdicts.clear()
    dataset_retries.retry_options(place.uri, place.storage)
    fail(failing.storage, deny=True)
    with pytest.raises(CommitError, match="Check the credentials") as caught:
        refuse_unsafe_store(place.uri, place.storage, allow=False)
    assert "unsafe" not in str(caught.value) and "ALLOW" not in str(caught.value)
