"""Checkpoints in stores of Lance, and next to a table in use."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_spark.dataset import FOLDER
from lance_spark.errors import TableUnwritableError
from lance_spark.storage.objects import LanceObjects, checkpoint_store
from udf_runtime.checkpoint import CheckpointKey

KEY = CheckpointKey(udf_name="double", udf_version="1", inputs=(0,), output_type="int64")


@pytest.fixture(params=["path", "file-object-store", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "path": str(tmp_path / "place"),
        "file-object-store": f"file-object-store://{tmp_path}/place",
        "memory": f"memory://{tmp_path.name}",
    }[request.param]


def test_objects_are_put_found_and_deleted(uri: str) -> None:
    objects = LanceObjects(uri)
    assert objects.list("a") == [] and objects.get("a/b") is None
    objects.put("a/b", b"one")
    objects.put("a/c/d=20e_f-g.rows", b"two" * 1_000_000)
    objects.put("ab", b"")
    objects.put("a/b", b"three")
    assert objects.list("a") == ["a/b", "a/c/d=20e_f-g.rows"]
    assert [objects.get(path) for path in ("a/b", "a/c/d=20e_f-g.rows", "ab")] == [
        b"three",
        b"two" * 1_000_000,
        b"",
    ]
    objects.delete("a/b")
    objects.delete("a/b")
    assert objects.list("a") == ["a/c/d=20e_f-g.rows"]
    assert objects.remove_leftovers("a", older_than_s=0) == 0
    assert pickle.loads(pickle.dumps(objects)) == objects


def test_a_folder_is_deleted_whole_or_its_deletion_fails(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = LanceObjects(uri)
    for name in ("f/a", "f/b/c", "g"):
        objects.put(name, b"1")
    if not uri.startswith("memory"):
        (Path(uri.removeprefix("file-object-store://")) / "f/b/.killed.tmp").write_bytes(b"1")
    objects.delete_folder("f")
    objects.delete_folder("f")
    assert objects.list("f") == [] and objects.list("g") == []
    assert objects.get("g") == b"1"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    objects.put("f/a", b"1")
    monkeypatch.setattr("os.unlink", refuse)
    if uri.startswith("/"):
        with pytest.raises(PermissionError):
            objects.delete_folder("f")


def write(uri: str, location: str | None = None, job: str = "a job/of mine"):
    store = checkpoint_store(uri, (), location)
    offsets, values = pa.array([1, 2, 7], pa.uint32()), pa.array(["a", None, "b"])
    return store, store.write(KEY, "5" * 32, job_id=job, offsets=offsets, values=values)


def test_checkpoints_are_found_and_read(uri: str) -> None:
    store, entry = write(uri)
    assert entry.path.startswith("checkpoints/") and store.objects == LanceObjects(
        f"{uri}/{FOLDER}"
    )
    assert pickle.loads(pickle.dumps(store)).find(KEY, "5" * 32) == [entry]
    content = store.read(entry, KEY, "5" * 32)
    assert content is not None
    assert content[0].to_pylist() == [1, 2, 7] and content[1].to_pylist() == ["a", None, "b"]
    assert store.cleanup(keep=lambda key, source: False) == 1
    assert store.find(KEY, "5" * 32) == [] and store.read(entry, KEY, "5" * 32) is None


def test_checkpoints_can_be_elsewhere(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    write(str(tmp_path / "table.lance"), f"file://{place}")
    write(str(tmp_path / "table.lance"), str(place))
    assert not (tmp_path / "table.lance").exists()
    assert len(checkpoint_store("another", (), str(place)).find(KEY, "5" * 32)) == 2


def test_lance_neither_reads_checkpoints_nor_cleans_them_up(tmp_path: Path) -> None:
    path = str(tmp_path / "table.lance")
    lance.write_dataset(pa.table({"x": [1]}), path)
    store, entry = write(path)
    for value in (2, 3):
        lance.write_dataset(pa.table({"x": [value]}), path, mode="append")
    dataset = lance.dataset(path)
    dataset.optimize.compact_files()
    for path_, _, files in os.walk(tmp_path / "table.lance" / "_lance_spark"):
        for file in files:
            os.utime(os.path.join(path_, file), (time.time() - 30 * 86_400,) * 2)
    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert lance.dataset(path).to_table().to_pydict() == {"x": [1, 2, 3]}
    assert store.read(entry, KEY, "5" * 32) is not None


def test_a_place_that_refuses_is_an_error_and_not_a_missing_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(TableUnwritableError, match="cannot be written"):
        write(str(tmp_path / "file"))
    with pytest.raises(TableUnwritableError, match="cannot be written"):
        write(f"file-object-store://{tmp_path}/file")


def test_files_have_the_permissions_that_other_files_get(tmp_path: Path) -> None:
    _, entry = write(str(tmp_path))
    (tmp_path / "plain").write_bytes(b"x")
    modes = [
        stat.S_IMODE((tmp_path / path).stat().st_mode)
        for path in (f"{FOLDER}/{entry.path}", "plain")
    ]
    assert modes[0] == modes[1]


def test_a_local_place_needs_no_lance(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa\n"
        "from lance_spark.storage.objects import checkpoint_store\n"
        "from udf_runtime.checkpoint import CheckpointKey\n"
        "key = CheckpointKey(udf_name='f', udf_version='1', inputs=(), output_type='int64')\n"
        "store = checkpoint_store(sys.argv[1])\n"
        "entry = store.write(key, 'ab', job_id='j', offsets=pa.array([0]), values=pa.array([1]))\n"
        "assert store.find(key, 'ab') == [entry] and store.read(entry, key, 'ab')\n"
        "print('lance' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "False"


def test_a_small_checkpoint_takes_less_than_two_milliseconds(tmp_path: Path) -> None:
    store = checkpoint_store(str(tmp_path))
    offsets, values = pa.array(range(1000)), pa.array(range(1000))
    best = 1.0
    for _ in range(50):
        start = time.perf_counter()
        entry = store.write(KEY, "ab", job_id="j", offsets=offsets, values=values)
        assert store.read(entry, KEY, "ab") is not None
        best = min(best, time.perf_counter() - start)
    assert best < 0.002
