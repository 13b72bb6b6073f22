"""Objects in files: atomic, and safe with concurrent writers and after a kill."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from udf_runtime.checkpoint import LocalObjects


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(str(tmp_path / "root"))


def test_objects_are_put_found_and_deleted(objects: LocalObjects) -> None:
    assert objects.list("") == [] == objects.list("a/b")
    assert objects.get("a/b/c") is None
    objects.put("a/b/c", b"one")
    objects.put("a/d", b"two")
    objects.put("a/d", b"three")
    assert objects.list("") == objects.list("a") == objects.list("a/") == ["a/b/c", "a/d"]
    assert objects.list("a/b") == ["a/b/c"]
    assert objects.list("a/d") == objects.list("a/d/e") == []
    assert (objects.get("a/b/c"), objects.get("a/d"), objects.get("a"[:1] + "/d/e")) == (
        b"one",
        b"three",
        None,
    )
    objects.delete("a/b/c")
    objects.delete("a/b/c")
    assert objects.get("a/b/c") is None
    assert not os.path.exists(os.path.join(objects.root, "a", "b")), "empty folders go along"
    objects.delete("a/d")
    assert os.listdir(objects.root) == []
    assert pickle.loads(pickle.dumps(objects)) == objects


@pytest.mark.parametrize("below", ["", "t.lance/_lance_spark"])
def test_no_link_below_the_boundary_is_followed(below: str, tmp_path: Path) -> None:
    victim, boundary = tmp_path / "victim", tmp_path / "boundary"
    (victim / "folder").mkdir(parents=True)
    (victim / "file").write_bytes(b"of the victim")
    objects = LocalObjects(str(boundary / below), boundary=str(boundary))
    objects.put("ours/file", b"ours")
    root = Path(objects.root)
    (root / "ours/link").symlink_to(victim / "file")
    (root / "away").symlink_to(victim)
    assert objects.get("ours/link") is None
    objects.put("ours/link", b"ours")
    assert objects.get("ours/link") == b"ours"
    for path in ("away/file", "away/folder/new", "away/new"):
        assert objects.get(path) is None
        with pytest.raises(NotADirectoryError, match=re.escape(f"{root}/{path}")):
            objects.put(path, b"ours")
    if below:
        root.rename(tmp_path / "moved")
        root.symlink_to(tmp_path / "moved")
        assert objects.get("ours/file") is None
        with pytest.raises(NotADirectoryError):
            objects.put("ours/other", b"ours")
    assert sorted(path.name for path in victim.rglob("*")) == ["file", "folder"]
    assert (victim / "file").read_bytes() == b"of the victim"


def test_a_pipe_in_the_place_of_an_object_is_not_waited_for(objects: LocalObjects) -> None:
    os.makedirs(objects.root)
    os.mkfifo(os.path.join(objects.root, "pipe"))
    assert objects.get("pipe") == b""


def test_an_empty_object_is_an_object(objects: LocalObjects) -> None:
    objects.put("x", b"")
    assert objects.get("x") == b""


def test_a_folder_in_the_place_of_an_object_is_an_error(objects: LocalObjects) -> None:
    objects.put("a/b", b"x")
    with pytest.raises(OSError, match="a"):
        objects.put("a", b"y")
    assert objects.list("") == ["a/b"]


def test_readers_never_see_a_part(objects: LocalObjects) -> None:
    contents = {bytes([i]) * 300_000 for i in range(4)}
    objects.put("k/x", next(iter(contents)))
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            for content in contents:
                objects.put("k/x", content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(500):
            assert objects.get("k/x") in contents
    finally:
        over.set()
        writer.join()
    assert objects.list("") == ["k/x"]


def test_a_writer_and_a_deleter_of_the_last_file_do_not_trip_each_other(
    objects: LocalObjects,
) -> None:
    failures: list[BaseException] = []

    def churn(name: str) -> None:
        try:
            for _ in range(300):
                objects.put(f"a/b/{name}", b"x")
                objects.delete(f"a/b/{name}")
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=churn, args=[name]) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_killed_writer_leaves_nothing_that_counts(objects: LocalObjects) -> None:
    objects.put("k/whole", b"x")
    code = "import sys; from udf_runtime.checkpoint import LocalObjects; o = LocalObjects(sys.argv[1]); d = b'x' * (64 << 20)\n"
    code += "print('ready', flush=True)\nwhile True: o.put('k/big', d)"
    with subprocess.Popen(
        [sys.executable, "-c", code, objects.root], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        while not (
            temporary_files := [
                name for name in os.listdir(f"{objects.root}/k") if name.startswith(".")
            ]
        ):
            time.sleep(0.001)
        writer.send_signal(signal.SIGKILL)
    for name in temporary_files:
        # Makes the file look half-written, regardless of the moment of the kill.
        Path(objects.root, "k", name).write_bytes(b"x")
    assert set(objects.list("k")) <= {"k/whole", "k/big"}
    content = objects.get("k/big")
    assert content is None or len(content) == 64 << 20
    assert objects.remove_leftovers("k", older_than_s=3600) == 0
    time.sleep(0.01)
    assert objects.remove_leftovers("k", older_than_s=0) >= 1
    assert not any(name.startswith(".") for name in os.listdir(f"{objects.root}/k"))
    assert "k/whole" in objects.list("k")


def test_a_failed_write_leaves_no_file(objects: LocalObjects) -> None:
    objects.put("a/b", b"x")
    with pytest.raises(TypeError):
        objects.put("a/c", "text")  # type: ignore[arg-type]
    assert os.listdir(os.path.join(objects.root, "a")) == ["b"]


def test_a_small_object_takes_less_than_two_milliseconds(objects: LocalObjects) -> None:
    best = 1.0
    for i in range(50):
        start = time.perf_counter()
        objects.put(f"key/source/{i}", b"x" * 10_000)
        assert objects.get(f"key/source/{i}") == b"x" * 10_000
        best = min(best, time.perf_counter() - start)
    assert best < 0.002
