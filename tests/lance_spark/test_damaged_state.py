"""Damaged and forged files and metadata of lance-spark: typed errors, a surviving driver, and a repair."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import lance_spark
from lance_spark import DamagedFileError, DamagedRecordWarning, Table, cli
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnreadableError
from lance_spark.jobs import reader_process
from lance_spark.jobs.reader_process import ReaderEndedError, ReaderProcess, read_in_child
from lance_spark.jobs.tables import ERRORS, JOBS
from lance_spark.storage import objects
from lance_spark.storage.objects import checkpoint_place, checkpoint_store
from tests.data import ARCHIVE
from tests.support.waiting import eventually
from udf_runtime import UdfRuntimeError

pytestmark = pytest.mark.sample(1, tests=3)

SIDE_TABLES = ("jobs", "errors", "records")
ENDS_THE_DECODER = (-13, b"\xff" * 5)
"""An offset from the end of a Lance file, and bytes for this place that crash a decoding process."""

STORE = {
    "aws_endpoint": "http://127.0.0.1:1",
    "allow_http": "true",
    "aws_region": "x",
    "aws_access_key_id": "x",
    "aws_secret_access_key": "x",
    "client_max_retries": "0",
}
"""Options of an object store without an answer."""

TYPED = (lance_spark.LanceSparkError, UdfRuntimeError)


def each_pair_of(damages: Iterable[str], *, quick: Mapping[str, str]) -> list[Any]:
    """Returns each damage with each side table; the pairs of `quick` run in the quick suite."""
    return [
        pytest.param(damage, name, marks=() if quick.get(damage) == name else pytest.mark.long)
        for damage in damages
        for name in SIDE_TABLES
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table with a history, errors, records, checkpoints and stored UDFs."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "db" / "docs.lance"


@pytest.fixture
def docs(folder: Path, jobs: Any) -> Table:
    return lance_spark.connect(str(folder.parent), jobs, progress=False).open_table("docs")


def newest_file(folder: Path, table: str) -> Path:
    return max(
        (folder / "_lance_spark" / f"{table}.lance" / "data").iterdir(),
        key=lambda file: file.stat().st_size,
    )


def overwrite(file: Path, offset: int, data: bytes) -> None:
    body = bytearray(file.read_bytes())
    at = offset % len(body)
    body[at : at + len(data)] = data
    file.write_bytes(bytes(body))


def jobs_of(table: Table) -> set[str]:
    return {job.job_id for job in table.list_jobs()}


@pytest.mark.long
def test_a_file_that_ends_its_decoder_is_an_error_that_names_the_file_and_the_driver_lives(
    folder: Path, docs: Table
) -> None:
    calls: dict[str, Callable[[], object]] = {
        "jobs": docs.list_jobs,
        "errors": lambda: docs.get_failed_row_addresses("any", "odd_only"),
    }
    for name, call in calls.items():
        file = newest_file(folder, name)
        overwrite(file, *ENDS_THE_DECODER)
        with pytest.raises(DamagedFileError, match=r"check .* --repair") as caught:
            call()
        assert caught.value.files == (f"_lance_spark/{name}.lance/data/{file.name}",)
    overwrite(newest_file(folder, "records"), *ENDS_THE_DECODER)
    assert docs.plan_backfill("letters").total_rows_pending >= 5


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("damage", "name"),
    each_pair_of(["cut", "footer", "missing"], quick={"cut": "records", "footer": "jobs"}),
)
def test_a_repair_keeps_the_readable_rows_and_moves_the_damaged_file_aside(
    folder: Path, docs: Table, name: str, damage: str
) -> None:
    before = jobs_of(docs)
    file = newest_file(folder, name)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "footer":
        overwrite(file, *ENDS_THE_DECODER)
    else:
        file.unlink()
    report = lance_spark.check(str(folder))
    assert [place.place for place in report.damages] == [
        f"_lance_spark/{name}.lance/data/{file.name}"
    ]
    assert not report.is_intact
    assert lance_spark.check(str(folder), repair=True).is_intact
    assert lance_spark.check(str(folder)).damages == ()
    aside = [
        path.name
        for path in (folder / "_lance_spark" / "damaged").rglob("*.lance")
        if path.is_file()
    ]
    assert aside == ([] if damage == "missing" else [file.name])
    assert len(before - jobs_of(docs)) <= (name == "jobs")
    assert docs.backfill("letters").rows_computed >= 5


def test_a_cut_manifest_is_an_error_and_the_repair_restores_the_version_before(
    folder: Path, docs: Table
) -> None:
    before = len(docs.list_jobs())
    manifest = min((folder / "_lance_spark/jobs.lance/_versions").glob("*.manifest"))
    manifest.write_bytes(manifest.read_bytes()[:50])
    with pytest.raises(DamagedFileError, match=manifest.name):
        docs.list_jobs()
    assert lance_spark.check(str(folder), repair=True).is_intact
    assert before - 1 <= len(docs.list_jobs()) <= before


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("damage", "name"),
    each_pair_of(
        ["cut", "empty", "overwritten", "two cut"],
        quick={"overwritten": "records"},
    ),
)
def test_a_repair_of_a_damaged_manifest_falls_back_to_the_version_before(
    folder: Path, docs: Table, name: str, damage: str
) -> None:
    versions = folder / f"_lance_spark/{name}.lance/_versions"
    version_count = len(lance.dataset(versions.parent).versions())
    manifests = sorted(versions.glob("*.manifest"))[
        : min(2 if damage == "two cut" else 1, version_count - 1)
    ]
    damaged = {}
    for manifest in manifests:
        body = manifest.read_bytes()
        damaged[manifest.name] = {"empty": b"", "overwritten": b"\xff" * len(body)}.get(
            damage, body[:50]
        )
        manifest.write_bytes(damaged[manifest.name])
    report = lance_spark.check(str(folder)).damages
    assert [place.place for place in report] == [
        f"_lance_spark/{name}.lance/_versions/{manifests[0].name}"
    ]
    assert not report[0].repaired and manifests[0].exists()
    result = lance_spark.check(str(folder), repair=True)
    assert result.is_intact and len(result.damages) == len(manifests)
    aside = {
        path.name: path.read_bytes()
        for path in (folder / "_lance_spark/damaged").rglob("*.manifest")
    }
    assert aside == damaged and not any(manifest.exists() for manifest in manifests)
    assert lance_spark.check(str(folder)).damages == ()
    assert len(lance.dataset(versions.parent).versions()) == version_count - len(manifests)
    assert docs.list_jobs() is not None and docs.backfill("letters").rows_computed >= 5


def test_intact_tables_of_earlier_commits_have_no_damage(folder: Path) -> None:
    for table in sorted(folder.parent.glob("*.lance")):
        assert lance_spark.check(str(table)).damages == (), table.name


def test_a_repair_moves_damaged_checkpoints_and_stored_udfs_and_leaves_newer_checkpoints(
    folder: Path,
) -> None:
    newer, checkpoint = sorted((folder / "_lance_spark/checkpoints").rglob("*.rows"))[:2]
    stored = next(iter(sorted((folder / "_lance_spark/udfs").iterdir())))
    overwrite(newer, 7, b"\x03")
    overwrite(checkpoint, -30, b"zz")
    overwrite(stored, 10, b"zz")
    damages = lance_spark.check(str(folder), repair=True).damages
    names = [Path(damage.place).name for damage in damages]
    assert names == [newer.name, checkpoint.name, stored.name]
    assert not checkpoint.exists() and not stored.exists() and newer.exists()
    (left,) = lance_spark.check(str(folder)).damages
    assert left == damages[0] and not left.repaired and "newer release" in left.remedy


def test_a_repair_refuses_to_lose_the_columns_of_a_newer_release(folder: Path) -> None:
    errors = lance.dataset(folder / ERRORS.name)
    errors.add_columns({"severity": "'high'"})
    errors.insert(errors.to_table().slice(0, 1).set_column(0, "error_id", [pa.nulls(1, "string")]))
    with pytest.raises(TableUnreadableError, match="newer release"):
        lance_spark.check(str(folder), repair=True)
    assert lance.dataset(folder / ERRORS.name).version == errors.version


def test_a_shared_folder_of_checkpoints_is_opened_once_for_all_branches(
    tmp_path: Path, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lance_spark.connect(str(tmp_path / "db"), jobs, progress=False).create_table(
        "t", [{"id": 1}]
    )
    branches = [table, *(table.branches.create(name) for name in ("dev", "more/two", "third"))]
    shared = f"file-object-store://{tmp_path}/kept"
    stores = [
        checkpoint_store(branch_table.uri, location=checkpoint_place(shared, branch_table.uri))
        for branch_table in branches
    ]
    for store in stores:
        store.objects.put("checkpoints/f/x.rows", b"damaged")
    opened = []
    open_file_session = objects._open_session
    monkeypatch.setattr(
        objects,
        "_open_session",
        lambda uri, options: opened.append(uri) or open_file_session(uri, options),
    )
    damages = lance_spark.check(table.uri, checkpoint=shared).damages
    assert set(opened) == {shared}
    assert [damage.place.rpartition(": ")[2] for damage in damages] == ["checkpoints/f/x.rows"] * 4
    assert lance_spark.check(table.uri, checkpoint=shared, repair=True).is_intact
    assert lance_spark.check(table.uri, checkpoint=shared).damages == ()
    for store in stores:
        assert len(store.objects.list("damaged")) == 1


def test_branches_are_checked_and_repaired(tmp_path: Path, jobs: Any) -> None:
    table = lance_spark.connect(str(tmp_path / "db"), jobs, progress=False).create_table(
        "t", [{"id": 1}]
    )
    branches = {name: table.branches.create(name) for name in ("dev", "more/two")}
    row = pa.Table.from_pylist([{**JOB, "seconds": "{"}], schema=JOBS.schema)
    for name, branch in branches.items():
        branch.add([{"id": 2}])
        lance.write_dataset(row, f"{table.uri}/tree/{name}/{JOBS.name}")
    places = [damage.place for damage in lance_spark.check(table.uri).damages]
    assert places == [f"branch '{name}': {JOBS.name}, row 0" for name in branches]
    assert (
        lance_spark.check(table.uri, repair=True).is_intact
        and lance_spark.check(table.uri).damages == ()
    )
    assert branches["dev"].list_jobs() == []
    for manifest in Path(table.uri, "tree/more/two/_versions").glob("*.manifest"):
        manifest.write_bytes(b"")
    (only_damage,) = lance_spark.check(table.uri).damages
    assert (only_damage.place, only_damage.repaired) == (
        "branch 'more/two': its latest version",
        False,
    )


def test_the_command_exits_with_one_while_damage_remains(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest_file(folder, "jobs").write_bytes(b"")
    codes = []
    for options in (["--json"], ["--repair"], []):
        with pytest.raises(SystemExit) as ended:
            cli.main(["check", str(folder), *options])
        codes.append(ended.value.code)
    output = capsys.readouterr().out
    document, end = json.JSONDecoder().raw_decode(output)
    assert codes == [1, 0, 0] and "0 damaged" in output[end:]
    assert [damage["repaired"] for damage in document["damages"]] == [False]


def calls_of(docs: Table) -> Iterator[Callable[[], object]]:
    yield docs.list_jobs
    yield docs.get_errors
    yield lambda: docs.get_failed_row_addresses("j", "letters")
    yield lambda: docs.plan_backfill("letters")
    yield lambda: docs.plan_backfill("letters", where="1=1")
    yield lambda: docs.versions[-3:]
    yield lambda: lance_spark.last_commit(docs.uri)
    yield lambda: docs.get_manifest("letters")
    yield docs._repr_html_
    yield lambda: lance_spark.check(docs.uri)


@pytest.mark.long
def test_random_damage_of_any_private_file_ends_in_an_answer_or_a_typed_error(
    folder: Path, tmp_path: Path, jobs: Any
) -> None:
    check_random_damage(folder, tmp_path, jobs, seeds=range(400))


def check_random_damage(folder: Path, tmp_path: Path, jobs: Any, *, seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        home = tmp_path / f"copy{seed}"
        shutil.copytree(folder, home / "docs.lance")
        files = [
            path
            for path in sorted((home / "docs.lance" / "_lance_spark").rglob("*"))
            if path.is_file()
        ]
        for file in rng.sample(files, min(len(files), 4)):
            size = max(file.stat().st_size, 1)
            overwrite(file, rng.randrange(size), rng.choice([b"\xff" * 5, b"\0", b"{", b"\x80"]))
        table = lance_spark.connect(str(home), jobs, progress=False).open_table("docs")
        for call in calls_of(table):
            answer_or_typed_error(call)
        shutil.rmtree(home)


def answer_or_typed_error(call: Callable[[], object]) -> None:
    with warnings.catch_warnings(), contextlib.suppress(*TYPED):
        warnings.simplefilter("ignore", DamagedRecordWarning)
        call()


PAST = datetime(2020, 1, 1, tzinfo=UTC)
JOB: dict[str, Any] = {
    "job_id": "j",
    "job_type": "backfill",
    "status": "RUNNING",
    "columns": ["x"],
    "udf_name": "u",
    "udf_version": "1",
    "input_columns": ["id"],
    "key": "k",
    "read_version": 1,
    "staging_id": "0" * 40,
    "launched_at": PAST,
    "updated_at": PAST,
    "launched_by": "me",
    "process": json.dumps({"host": "h", "pid": 1, "started": "0"}),
    **dict.fromkeys(("rows_selected", "rows_computed", "rows_from_checkpoint", "rows_skipped"), 0),
    **dict.fromkeys(("rows_failed", "fragments_total", "fragments_done", "retries"), 0),
    "versions": [],
    "seconds": "{}",
}
HOST = socket.gethostname()
FORGED: dict[str, list[Any]] = {
    "process": [
        None,
        "",
        "{",
        "[" * 5000,
        '{"host": 1}',
        *(json.dumps({"host": HOST, "pid": pid, "started": "0"}) for pid in ("x", -1, 0, 10**20)),
    ],
    "seconds": [
        "{",
        "[]",
        '{"read": "x"}',
        '{"total": -1}',
        f'{{"total": {10**400}}}',
        '{"read": Infinity}',
        '{"read": NaN}',
    ],
    "staging_id": [None, "", "../../../../victim", "z" * 40, "A" * 40],
    "status": [None, "ASLEEP"],
    "launched_at": [None],
    "updated_at": [None],
    "columns": [[None]],
    "versions": [[None]],
    "rows_computed": [None, -1],
    "cost": [-0.5, float("inf")],
}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in FORGED.items() for value in values]
)
def test_a_forged_row_of_the_history_is_skipped_with_a_warning_and_blocks_no_call(
    tmp_path: Path, jobs: Any, field: str, value: object
) -> None:
    table = lance_spark.connect(str(tmp_path / "db"), jobs, progress=False).create_table(
        "t", [{"id": 1}]
    )
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    intact, forged = {**JOB, "job_id": "intact"}, {**JOB, field: value}
    history = pa.Table.from_pylist([intact, forged], schema=JOBS.schema)
    lance.write_dataset(history, f"{table.uri}/{JOBS.name}")
    with pytest.warns(DamagedRecordWarning, match="row 1 of"):
        assert [job.job_id for job in table.list_jobs()] == ["intact"]
    assert table.get_job("intact").status == "DEAD"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRecordWarning)
        lance_spark.cleanup(table.uri, older_than=timedelta(0))
    assert (victim / "file").exists()
    assert lance_spark.check(table.uri, repair=True).is_intact
    assert [job.job_id for job in table.list_jobs()] == ["intact"]


def test_a_forged_row_of_the_errors_is_an_error_and_no_shorter_list(
    tmp_path: Path, jobs: Any
) -> None:
    table = lance_spark.connect(str(tmp_path / "db"), jobs, progress=False).create_table(
        "t", [{"id": 1}]
    )
    rows = pa.Table.from_pylist(
        [{"error_id": "e", "job_id": "j", "columns": ["x"]}], schema=ERRORS.schema
    )
    lance.write_dataset(rows, f"{table.uri}/{ERRORS.name}")
    with pytest.raises(DamagedFileError, match=r"errors\.lance"):
        table.get_failed_row_addresses("j", "x")
    assert table.list_jobs() == []
    assert lance_spark.check(table.uri, repair=True).is_intact
    assert table.get_errors() == []


SUMMARY = {"operation": "append", "job_id": "j", "read_version": 1, "rows": 1, "fragments": 1}
SUMMARIES = [
    "", "{", "null", "[]", "[" * 5000, '{"a":' * 5000, json.dumps({"operation": "append"}),
    *(json.dumps({**SUMMARY, **wrong}) for wrong in ({"operation": 5}, {"rows": None}, {"columns": 5}, {"retries": "zz"})),
]  # fmt: skip


@pytest.mark.parametrize("text", SUMMARIES)
def test_a_version_with_a_forged_summary_is_shown_without_the_summary(
    tmp_path: Path, jobs: Any, text: str
) -> None:
    table = lance_spark.connect(str(tmp_path / "db"), jobs, progress=False).create_table(
        "t", [{"id": 1}]
    )
    dataset = table.to_lance()
    fragments = write_fragments(pa.table({"id": [2]}), dataset, mode="append")
    forged = lance.Transaction(
        read_version=dataset.version,
        operation=lance.LanceOperation.Append(fragments),
        transaction_properties={"lance-spark.summary": text, "lance-spark.job": "j"},
    )
    version = lance.LanceDataset.commit(table.uri, forged).version
    assert [version_info.rows_added for version_info in table.versions[-1:]] == [1]
    last = lance_spark.last_commit(table.uri)
    assert last is None or last.version < version
    assert [damage.place for damage in lance_spark.check(table.uri).damages] == [
        f"version {version}"
    ]


def test_the_child_that_decodes_ends_with_its_driver(folder: Path) -> None:
    code = (
        "import sys, os, lance_spark; from lance_spark.jobs import reader_process as r;"
        "lance_spark.connect(os.path.dirname(sys.argv[1])).open_table('docs').list_jobs();"
        "print(r._reader._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=False, capture_output=True, text=True
    )
    child = int(process.stdout)
    eventually(lambda: not Path(f"/proc/{child}").exists())


def test_a_child_that_hangs_is_ended_after_a_minute_and_longer_only_for_an_object_store(
    folder: Path, docs: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs_before = jobs_of(docs)
    stopped = reader_process._running_reader()
    os.kill(stopped._process.pid, signal.SIGSTOP)
    waits: list[float] = []
    call = ReaderProcess.call

    def impatient(reader: ReaderProcess, request: dict[str, Any], *, timeout_s: float) -> object:
        waits.append(timeout_s)
        return call(reader, request, timeout_s=0.2 if reader is stopped else timeout_s)

    monkeypatch.setattr(ReaderProcess, "call", impatient)
    with pytest.raises(ReaderEndedError, match="gave no answer within 0 s"):
        read_in_child(DatasetRef.at(f"{folder}/{JOBS.name}"), JOBS.schema, None)
    assert not stopped.is_running and jobs_of(docs) == jobs_before
    with pytest.raises(TableUnreadableError):
        read_in_child(DatasetRef.at("s3://no-bucket/t.lance", STORE), JOBS.schema, None)
    assert set(waits) == {60.0, 360.0}


def test_the_child_that_decodes_imports_no_pandas(docs: Table) -> None:
    docs.list_jobs()
    reader = reader_process._running_reader()
    libraries = Path(f"/proc/{reader._process.pid}/maps").read_text()
    assert "/lance/" in libraries and "/pandas/" not in libraries


def test_the_child_that_decodes_imports_nothing_from_the_working_directory(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("open('imported', 'w')")
    code = "import sys, os, lance_spark;lance_spark.connect(os.path.dirname(sys.argv[1])).open_table('docs').list_jobs()"
    subprocess.run([sys.executable, "-P", "-c", code, str(folder)], check=True, cwd=tmp_path)
    assert not (tmp_path / "imported").exists()
