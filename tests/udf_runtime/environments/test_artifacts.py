"""Artifacts of UDFs: listing, version, copies on a machine, and the argument of `setup`."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from udf_runtime import UDF, ArtifactError, UdfDefinitionError, as_udf, udf
from udf_runtime.definition.artifacts import Artifact, ArtifactCopy, ArtifactFile
from udf_runtime.environments import artifact_cache, machine_cache
from udf_runtime.environments.artifact_cache import ArtifactCache, list_artifact
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.isolation.process import Interpreter, ProcessSpec
from udf_runtime.execute.isolation.process_registry import ProcessRegistry


def listed(location: Path, name: str = "model") -> Artifact:
    return list_artifact(
        Artifact(name=name, location=str(location)), fs.LocalFileSystem(), str(location)
    )


def copied(artifact: Artifact, folder: Path, most_bytes: int = 1 << 30) -> ArtifactCopy:
    cache = ArtifactCache(folder=str(folder), most_bytes=most_bytes)
    return cache.open(artifact, lambda: (fs.LocalFileSystem(), artifact.location))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "weights.bin").write_bytes(b"weights")
    (tmp_path / "model" / "sub" / "config.json").write_bytes(b"{}")
    (tmp_path / "model" / "empty").touch()
    return tmp_path / "model"


def make_udf(location: Path, **options: object) -> UDF:
    """Returns a UDF whose rows are the argument of `setup`, and how often a process called `setup`."""

    @udf(artifacts={"model": str(location)}, input_columns=["x"], **options)  # type: ignore[call-overload, misc]
    class Reader:
        def __init__(self) -> None:
            self.text = ""

        def setup(self, artifacts: Mapping[str, str]) -> None:
            assert type(artifacts) is dict
            place = artifacts["model"]
            names = sorted(os.listdir(place)) if os.path.isdir(place) else [os.path.basename(place)]
            self.text += f"{','.join(names)} {os.getpid()} {place}"

        def __call__(self, x: int) -> str:
            return self.text

    return as_udf(Reader) or pytest.fail("no UDF")


def with_listing(function: UDF) -> UDF:
    return function.with_artifacts(
        tuple(listed(Path(artifact.location)) for artifact in function.artifacts)
    )


def test_a_folder_and_a_file_are_copied_once_and_read_only(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for location in (model, model / "weights.bin"):
        artifact = listed(location)
        copy = copied(artifact, tmp_path / "cache")
        shutil.move(location, tmp_path / "away")  # a complete copy needs no source
        assert copied(artifact, tmp_path / "cache") == copy
        shutil.move(tmp_path / "away", location)
        files = {
            path.relative_to(copy.path).as_posix(): path
            for path in Path(copy.path).rglob("*")
            if path.is_file()
        }
        if location == model:
            assert {name: path.read_bytes() for name, path in files.items()} == {
                "weights.bin": b"weights",
                "sub/config.json": b"{}",
                "empty": b"",
            }
        else:
            assert (
                Path(copy.path).name == "weights.bin" and Path(copy.path).read_bytes() == b"weights"
            )
        assert not any(path.stat().st_mode & 0o222 for path in files.values())


def test_links_to_files_are_content_as_in_caches_of_models(model: Path, tmp_path: Path):
    (tmp_path / "blobs").mkdir()
    shutil.move(model / "weights.bin", tmp_path / "blobs" / "abc")
    (model / "weights.bin").symlink_to("../blobs/abc")
    copy = Path(copied(listed(model), tmp_path / "cache").path)
    assert (copy / "weights.bin").read_bytes() == b"weights" and not (
        copy / "weights.bin"
    ).is_symlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda path: path.write_bytes(b"WEIGHTS"),
            "'weights.bin' has another content than at its registration",
        ),
        (lambda path: path.write_bytes(b"weight"), "'weights.bin' has 6 bytes instead of 7"),
        (lambda path: path.unlink(), "'weights.bin' is gone"),
    ],
)
def test_a_file_that_changed_after_its_registration_fails_by_name(
    damage: Callable[[Path], object],
    reason: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    artifact = listed(model)
    damage(model / "weights.bin")
    with pytest.raises(
        ArtifactError, match=f"'model' cannot be copied: the file {reason}.*Restore the file"
    ) as caught:
        copied(artifact, tmp_path / "cache")
    assert caught.value.location == str(model)
    parsed = ArtifactError.parse(str(caught.value))
    assert (str(parsed), parsed.artifact, parsed.location) == (
        str(caught.value),
        "model",
        str(model),
    )
    assert not list((tmp_path / "cache").glob("artifact-*/"))  # no partial copy
    (model / "weights.bin").write_bytes(b"weights")
    with pytest.raises(ArtifactError, match="weights"):  # the failure counts for a minute
        copied(artifact, tmp_path / "cache")
    monkeypatch.setattr(machine_cache, "FAILED_FOR_S", 0.0)
    assert os.path.isdir(copied(artifact, tmp_path / "cache").path)


def test_a_copy_that_was_damaged_from_outside_is_made_again(model: Path, tmp_path: Path):
    artifact = listed(model)
    path = Path(copied(artifact, tmp_path / "cache").path) / "weights.bin"
    path.chmod(0o600)
    path.write_bytes(b"")
    copied(artifact, tmp_path / "cache")
    assert path.read_bytes() == b"weights"


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a/../../b", "a//b", "a\\b", "", "a\0b"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str):
    with pytest.raises(UdfDefinitionError, match="leads out of its folder"):
        ArtifactFile(path=name, size=1, sha256="0" * 64)


def test_locations_without_files_and_with_too_many_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(
        UdfDefinitionError, match=r"neither a file nor a folder. Location: .*missing"
    ):
        listed(tmp_path / "missing")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UdfDefinitionError, match="has 0 files"):
        listed(tmp_path / "nothing")
    monkeypatch.setattr(artifact_cache, "MOST_FILES", 2)
    with pytest.raises(UdfDefinitionError, match="has 3 files, and 1 to 2"):
        listed(model)


def start(code: str) -> subprocess.Popen[str]:
    imports = "from tests.udf_runtime.environments.test_artifacts import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", imports + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_at_once_copy_once_and_a_killed_copy_leaves_nothing_half_made(
    model: Path, tmp_path: Path
):
    folder = tmp_path / "cache"
    # The copy hangs in a pipe in place of the file, until it is killed.
    artifact = listed(model)
    shutil.move(model / "weights.bin", tmp_path / "weights.bin")
    os.mkfifo(model / "weights.bin")
    hanging = start(f"copied({artifact!r}, Path({str(folder)!r}))")
    while not list(folder.glob("artifact-*/files")):
        assert hanging.poll() is None, hanging.communicate()
    os.kill(hanging.pid, signal.SIGKILL)
    hanging.communicate()
    assert list(folder.glob("artifact-*/")) and not list(folder.glob("artifact-*/artifact.json"))
    (model / "weights.bin").unlink()
    shutil.move(tmp_path / "weights.bin", model / "weights.bin")

    code = f"""
import logging
logging.basicConfig(level=logging.INFO)
print(copied(listed(Path({str(model)!r})), Path({str(folder)!r})).path)
"""
    outputs = [process.communicate(timeout=60) for process in [start(code), start(code)]]
    (path,) = {out.strip() for out, _ in outputs}
    assert sum(text.count("machine_cache:copy of artifact 'model'") for _, text in outputs) == 1
    assert (Path(path) / "weights.bin").read_bytes() == b"weights" and len(
        list(Path(path).rglob("*"))
    ) == 4


def release(copy: ArtifactCopy) -> None:
    """Lets a copy go, as the end of the process does."""
    os.close(machine_cache._locks.pop(copy.entry))


def test_the_least_used_copies_are_removed_but_none_in_use(tmp_path: Path):
    folder = tmp_path / "cache"
    for name in "abc":
        (tmp_path / name).write_text(name)

    def use(name: str) -> ArtifactCopy:
        return copied(listed(tmp_path / name), folder, most_bytes=1)

    def present() -> set[str]:
        return {path.name for path in folder.glob("artifact-*/files/*")}

    user = use("a")
    release(use("b"))
    assert present() == {"a", "b"}  # a is in use
    release(use("c"))
    assert present() == {"a", "c"}
    release(user)
    release(use("b"))
    assert present() == {"b"}


def test_the_process_of_a_udf_holds_the_copy_after_its_parent_let_go(model: Path, tmp_path: Path):
    function, artifact = with_listing(make_udf(model)), listed(model)
    copy = copied(artifact, tmp_path / "cache")
    with UdfRunner(
        function, processes=ProcessSpec(interpreter=Interpreter(copies=(copy,)))
    ) as runner:
        (result,) = runner.run([pa.record_batch({"x": [1, 2]})])
        names, pid, place = result.values[0].as_py().split(" ")
        assert (names, place) == ("empty,sub,weights.bin", copy.path) and int(pid) != os.getpid()
        os.close(machine_cache._locks.pop(copy.entry))
        (tmp_path / "other").write_text("other")
        copied(listed(tmp_path / "other"), tmp_path / "cache", most_bytes=1)
        assert os.path.isdir(copy.path)
    ProcessRegistry(Owner.current()).end_all_idle()


def test_the_version_is_the_codes_and_the_contents(model: Path):
    plain = make_udf(model)
    with pytest.raises(UdfDefinitionError, match=r"not listed yet.*Register the UDF"):
        _ = plain.version
    with pytest.raises(UdfDefinitionError, match="not listed yet"):
        plain.pickle_once()
    first = with_listing(plain)
    assert first.version == f"{plain.code_version}+{first.version.partition('+')[2]}"
    assert (
        with_listing(plain).version
        == UDF.loads(first.dumps()).version
        == first.pickle_once().version
        == first.version
    )
    (model / "weights.bin").write_bytes(b"WEIGHTS")
    other = with_listing(plain)
    assert other.version != first.version and other.code_version == first.code_version
    explicit = make_udf(model, version="1")
    assert with_listing(explicit).version == f"1+{other.version.partition('+')[2]}"
    (model / "weights.bin").write_bytes(b"weights")
    assert with_listing(plain).version == first.version
    shutil.move(model / "weights.bin", model / "weights2.bin")
    assert with_listing(plain).version != first.version


class EtagStore:
    """A folder as an object store: each open file has the store's current ETag."""

    type_name = "s3"

    def __init__(self, *etags: str) -> None:
        self.folder, self.etags = fs.LocalFileSystem(), list(etags)
        self.reads = 0

    def get_file_info(self, path: Any) -> Any:
        return self.folder.get_file_info(path)

    def open_input_file(self, path: str) -> Any:
        return _OpenFile(self, self.folder.open_input_file(path))


class _OpenFile:
    def __init__(self, store: EtagStore, file: Any) -> None:
        self._store, self._file = store, file

    def __enter__(self) -> _OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def metadata(self) -> dict[str, bytes]:
        etags = self._store.etags
        return {"ETag": f'"{etags.pop(0) if len(etags) > 1 else etags[0]}"'.encode()}

    def size(self) -> int:
        return int(self._file.size())

    def seek(self, position: int) -> None:
        self._file.seek(position)

    def read_buffer(self, size: int) -> pa.Buffer:
        self._store.reads += 1
        block: pa.Buffer = self._file.read_buffer(size)
        return block


def test_a_store_with_etags_is_listed_without_a_read_and_counts_by_them(
    model: Path, tmp_path: Path
):
    def listed_with(etag: str) -> Artifact:
        store = EtagStore(etag)
        artifact = list_artifact(
            Artifact(name="m", location="s3://b/m"), store, str(model / "weights.bin")
        )
        assert store.reads == 0 and [file.sha256 for file in artifact.files] == [None]
        return artifact

    artifact = listed_with("1")
    assert (
        artifact.checksum
        == dataclasses.replace(artifact, location="s3://c/m").checksum
        != listed_with("2").checksum
    )
    # The file is written again, before the copy or during the copy, with the same size.
    for number, etags in enumerate((["2"], ["1", "2"])):
        cache = ArtifactCache(folder=str(tmp_path / f"cache{number}"))
        with pytest.raises(ArtifactError, match=r"'weights\.bin' has another content"):
            cache.open(
                artifact, lambda etags=etags: (EtagStore(*etags), str(model / "weights.bin"))
            )  # type: ignore[misc]
    copy = ArtifactCache(folder=str(tmp_path / "cache")).open(
        artifact, lambda: (EtagStore("1"), str(model / "weights.bin"))
    )
    assert Path(copy.path).read_bytes() == b"weights"


def test_a_large_file_of_a_store_is_copied_in_parts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(artifact_cache, "_PART_BYTES", 3)
    store, path = EtagStore("1"), str(model / "weights.bin")
    artifact = list_artifact(Artifact(name="m", location="s3://b/m"), store, path)
    copy = ArtifactCache(folder=str(tmp_path / "cache")).open(artifact, lambda: (store, path))
    assert Path(copy.path).read_bytes() == b"weights" and store.reads == 3
    for etags in (["1", "1", "2"], ["1", "1", "1", "1", "1", "2"]):
        cache = ArtifactCache(folder=str(tmp_path / f"cache{len(etags)}"))
        changing = EtagStore(*etags)
        with pytest.raises(ArtifactError, match="has another content"):
            cache.open(artifact, lambda changing=changing: (changing, path))  # type: ignore[misc]


def test_each_content_has_an_instance_of_its_own_in_a_process(model: Path, tmp_path: Path):
    function = with_listing(make_udf(model))
    payload = function.dumps()
    text = UDF.loads(payload)(1)  # a local path serves a direct call
    (model / "more").touch()
    other = with_listing(UDF.loads(payload))  # the same code
    assert UDF.loads(payload)(1) == text == f"empty,sub,weights.bin {os.getpid()} {model}"
    assert UDF.loads(other.dumps())(1) == f"empty,more,sub,weights.bin {os.getpid()} {model}"
    missing = dataclasses.replace(function.artifacts[0], location="s3://bucket/model")
    with pytest.raises(UdfDefinitionError, match="s3://bucket/model has no copy in this process"):
        function.with_artifacts((dataclasses.replace(missing, files=missing.files[:1]),)).load()


def test_artifacts_need_a_setup_that_takes_them():
    with pytest.raises(
        UdfDefinitionError, match=r"no method gets their paths.*setup\(self, artifacts\)"
    ):
        udf(artifacts={"model": "/m"}, data_type=pa.int64())(lambda x: x)

    class WithoutParameter:
        def setup(self) -> None: ...

        def __call__(self, x: int) -> int:
            return x

    class WithParameter:
        def setup(self, artifacts: Mapping[str, str], more: int = 0) -> None: ...

        def __call__(self, x: int) -> int:
            return x

    with pytest.raises(UdfDefinitionError, match="does not take the artifacts"):
        udf(artifacts={"model": "/m"})(WithoutParameter)
    with pytest.raises(
        UdfDefinitionError, match=r"has the parameter 'artifacts'.*has no artifacts"
    ):
        udf(WithParameter)
    for wrong in ({}, {"": "/m"}, {"model": " "}):
        with pytest.raises(UdfDefinitionError, match="no mapping of names to locations"):
            udf(artifacts=wrong)(WithoutParameter)
