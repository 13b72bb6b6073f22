"""`add` and `create_table` of Arrow and Python rows with concurrent commits: the rows arrive with their values, or a
typed error names the cause.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_spark
from lance_spark.commit.attempt import Unknown
from lance_spark.commit.rows import append_commit
from lance_spark.errors import (
    CommitConflictError,
    SchemaMismatchError,
    TableExistsError,
    ValueConversionError,
)

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int32()), ("w", pa.int64())])
ROWS = pa.table({"id": [1, 2], "v": pa.array([10, 20], pa.int32()), "w": [5, 6]})
NEW = [{"id": 3, "v": 30, "w": 7}, {"id": 4, "v": 40, "w": 8}]


def rows_around(act: Callable[[], object]) -> pa.RecordBatchReader:
    """Returns two batches, between which a concurrent writer acts."""

    def batches() -> Iterator[pa.RecordBatch]:
        for row in NEW:
            yield pa.RecordBatch.from_pylist([row], schema=SCHEMA)
            if row is NEW[0]:
                act()

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def data_files(uri: Path) -> set[str]:
    return {path.name for path in (uri / "data").iterdir()}


REFUSED: dict[str, Callable[[lance.LanceDataset], object]] = {
    "drop": lambda t: t.drop_columns(["v"]),
    "drop and make anew": lambda t: (
        t.drop_columns(["v"]),
        t.add_columns({"v": "cast(id + 1000 as int)"}),
    ),
    "drop, and another takes its id": lambda t: (
        t.drop_columns(["w"]),
        t.add_columns({"z": "id + 1000"}),
    ),
    "rename": lambda t: t.alter_columns({"path": "v", "name": "x"}),
    "cast": lambda t: t.alter_columns({"path": "v", "data_type": pa.int64()}),
    "no NULL any more": lambda t: t.alter_columns({"path": "v", "nullable": False}),
    "a new column without NULL": lambda t: (
        t.add_columns({"n": "id"}),
        t.alter_columns({"path": "n", "nullable": False}),
    ),
    "overwrite": lambda t: lance.write_dataset(pa.table({"other": ["a"]}), t.uri, mode="overwrite"),
}
TYPE_CHANGES: dict[str, Callable[[lance.LanceDataset], object]] = {
    "append": lambda t: lance.write_dataset(ROWS, t.uri, mode="append"),
    "delete": lambda t: t.delete("true"),
    "add a column": lambda t: t.add_columns({"n": "id + 1"}),
    "compact": lambda t: t.optimize.compact_files(),
    "index": lambda t: t.create_scalar_index("id", "BTREE"),
}


@pytest.mark.parametrize("moment", ["while the rows are written", "between look and commit"])
@pytest.mark.parametrize("change", REFUSED)
def test_rows_added_beside_a_change_of_their_columns_are_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, moment: str
) -> None:
    table = lance_spark.connect(str(tmp_path)).create_table("t", ROWS)
    uri = tmp_path / "t.lance"

    def act() -> None:
        REFUSED[change](lance.dataset(str(uri)))

    if moment == "between look and commit":
        real, acted = append_commit.attempt_commit, list[int]()

        def acting(*arguments: Any, **more: Any) -> Any:
            if not acted:
                acted.append(1)
                act()
            return real(*arguments, **more)

        monkeypatch.setattr(append_commit, "attempt_commit", acting)
    with pytest.raises(CommitConflictError, match=r"(?i)write again"):
        table.add(rows_around(act if moment != "between look and commit" else lambda: None))
    after = lance.dataset(str(uri))
    assert after.count_rows() == (1 if change == "overwrite" else 2)
    referenced_files = {file.path for version in after.versions() for fragment in
             lance.dataset(str(uri), version=version["version"]).get_fragments() for file in fragment.metadata.files}  # fmt: skip
    assert data_files(uri) == referenced_files and not list(
        (uri / "_lance_spark").glob("staging/*")
    )


@pytest.mark.parametrize("change", TYPE_CHANGES)
def test_rows_added_beside_other_commits_are_there_with_their_values(
    tmp_path: Path, change: str
) -> None:
    table = lance_spark.connect(str(tmp_path)).create_table("t", ROWS)
    table.add(rows_around(lambda: TYPE_CHANGES[change](table.to_lance())))
    assert table.to_arrow(["id", "v", "w"], "id > 2").to_pylist() == NEW


def test_an_append_whose_answer_is_lost_adds_its_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lance_spark.connect(str(tmp_path)).create_table("t", ROWS)
    real = append_commit.attempt_commit

    def unanswered(*arguments: Any, **more: Any) -> Any:
        real(*arguments, **more)
        return Unknown(error=OSError("no answer"))

    monkeypatch.setattr(append_commit, "attempt_commit", unanswered)
    table.add(NEW, commit_message="why", properties={"by": "test"})
    assert table.count_rows() == 4
    last = lance_spark.last_commit(table.uri)
    assert last is not None and (last.operation, last.rows, last.version) == ("append", 2, 2)


def test_rows_whose_source_fails_leave_nothing(tmp_path: Path) -> None:
    db = lance_spark.connect(str(tmp_path))
    table = db.create_table("t", ROWS)
    before = data_files(tmp_path / "t.lance")

    def fail() -> None:
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        table.add(rows_around(fail))
    with pytest.raises(RuntimeError, match="the source failed"):
        db.create_table("new", rows_around(fail))
    assert table.version == 1 and data_files(tmp_path / "t.lance") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.lance"]


def test_columns_may_come_in_another_order_and_views_of_other_buffers(tmp_path: Path) -> None:
    table = lance_spark.connect(str(tmp_path)).create_table("t", ROWS)
    shifted = pa.py_buffer(b"\0" + np.array([8, 9], np.int64).tobytes()).slice(1)
    misaligned = pa.Array.from_buffers(pa.int64(), 2, [None, shifted])
    table.add(pa.table({"w": misaligned, "id": [5, 6]}).slice(1))
    assert table.to_arrow(filter="id = 6").to_pylist() == [{"id": 6, "v": None, "w": 9}]
    strict = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("v", pa.list_(pa.field("x", pa.int8(), False))),
        ]
    )
    other_table = lance_spark.connect(str(tmp_path)).create_table("u", schema=strict)
    other_table.add(pa.table({"id": pa.array([1]), "v": pa.array([[1]], pa.list_(pa.int8()))}))
    with pytest.raises(ValueConversionError, match=r"NULL.*'id', row 1"):
        other_table.add(pa.table({"id": pa.array([1, None], pa.int64())}))
    with pytest.raises(SchemaMismatchError, match="'id' is missing"):
        other_table.add(pa.table({"v": pa.array([[1]], pa.list_(pa.int8()))}))
    assert other_table.to_arrow().to_pylist() == [{"id": 1, "v": [1]}]


def test_blobs_in_lances_own_form_are_added_by_their_bytes(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    db = lance_spark.connect(str(tmp_path))
    table = db.create_table("t", schema=pa.schema([("id", pa.int64()), blob]))
    source = pa.table({"id": [1, 2], "b": lance.blob_array([b"one", None])})
    table.add(source)
    again = db.create_table("u", source)
    for some in (table, again):
        assert some.to_arrow(blob_handling="bytes")["b"].to_pylist() == [b"one", None]


# Two creators


CREATOR = """
import sys, time
import pyarrow as pa, lance_spark
folder, mode, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
try:
    lance_spark.connect(folder).create_table("t", pa.table({"id": range(number * 10, number * 10 + 10)}), mode=mode)
    print("made")
except lance_spark.TableExistsError:
    print("exists")
"""


def create_in_threads(folder: str, mode: str) -> dict[int, str]:
    barrier = threading.Barrier(3)

    def create(number: int) -> str:
        data = pa.table({"id": range(number * 10, number * 10 + 10)})
        barrier.wait()
        try:
            lance_spark.connect(folder).create_table("t", data, mode=mode)  # type: ignore[arg-type]
        except TableExistsError:
            return "exists"
        return "made"

    with ThreadPoolExecutor(3) as pool:
        return dict(enumerate(pool.map(create, range(3))))


def create_in_processes(folder: str, mode: str) -> dict[int, str]:
    creators = [
        subprocess.Popen(
            [sys.executable, "-c", CREATOR, folder, mode, str(number)],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for creator in creators:
        assert creator.stdout is not None and creator.stdout.readline() == "ready\n"
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.write("\n")
        creator.stdin.flush()
    return {number: creator.communicate()[0].strip() for number, creator in enumerate(creators)}


@pytest.mark.parametrize("mode", ["create", "exist_ok", "overwrite"])
@pytest.mark.parametrize(
    "create",
    [create_in_threads, pytest.param(create_in_processes, marks=pytest.mark.long)],
    ids=["threads", "processes"],
)
def test_of_writers_that_create_one_table_at_once_one_wins_and_no_rows_are_lost(
    tmp_path: Path, create: Callable[[str, str], dict[int, str]], mode: str
) -> None:
    outcomes = create(str(tmp_path), mode)
    ids = lance.dataset(str(tmp_path / "t.lance")).to_table()["id"].to_pylist()
    assert len(ids) == 10 and ids[0] % 10 == 0, "the rows are those of one creator"
    winners = [number for number, outcome in outcomes.items() if outcome == "made"]
    assert set(outcomes.values()) <= {"made", "exists"}
    if mode == "create":
        assert winners == [ids[0] // 10]
        return
    assert len(winners) == 3
    versions = lance.dataset(str(tmp_path / "t.lance")).versions()
    assert len(versions) == (3 if mode == "overwrite" else 1)


@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_a_table_that_another_writer_creates_in_the_moment_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    uri, real, acted = str(tmp_path / "t.lance"), append_commit.attempt_commit, list[int]()

    def acting(*arguments: Any, **more: Any) -> Any:
        if not acted:
            acted.append(1)
            lance.write_dataset(ROWS, uri)
        return real(*arguments, **more)

    monkeypatch.setattr(append_commit, "attempt_commit", acting)
    db = lance_spark.connect(str(tmp_path))
    if mode == "overwrite":
        assert db.create_table("t", NEW, mode="overwrite").to_arrow().to_pylist() == NEW
        return
    with pytest.raises(TableExistsError, match="concurrent writer"):
        db.create_table("t", NEW)
    assert lance.dataset(uri).to_table() == ROWS and len(data_files(Path(uri))) == 1
