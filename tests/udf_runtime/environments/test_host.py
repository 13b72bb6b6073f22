"""Environments on a machine, made by real installers: once, for all processes, or not at all with the reason."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.udf_runtime.environments.conftest import opened, probing
from tests.udf_runtime.environments.wheels import wheel
from udf_runtime import EnvironmentBuildError, Manifest, udf
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments import archives, unpacked
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime.environments.manifest import current_python
from udf_runtime.environments.variables import Variables
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.isolation.process import Interpreter, ProcessSpec
from udf_runtime.execute.isolation.process_registry import ProcessRegistry

pytestmark = pytest.mark.sample(1, tests=3)

ROWS = pa.record_batch([pa.array([1, 2, 3], pa.int64())], names=["x"])


def run(
    manifest: Manifest, interpreter: Interpreter, function: Callable[[int], str]
) -> list[object]:
    """Returns the results of a scalar function in an environment."""
    environment_udf = udf(data_type=pa.string(), input_columns=["x"], manifest=manifest)(function)
    with UdfRunner(environment_udf, processes=ProcessSpec(interpreter=interpreter)) as runner:
        (result,) = runner.run([ROWS])
    ProcessRegistry(Owner.current()).end_all_idle()
    return result.values.to_pylist()


def make_probe() -> Callable[[int], str]:
    def version(x: int) -> str:
        import lance_spark_probe  # type: ignore[import-not-found]

        return f"{lance_spark_probe.VERSION} {x}"

    return version


def sees(*modules: str) -> Callable[[int], str]:
    def find(x: int) -> str:
        from importlib.util import find_spec

        return " ".join(name for name in modules if find_spec(name))

    return find


def names(cache: EnvironmentCache) -> set[str]:
    return {path.parent.name for path in Path(cache.folder or "").glob("*/environment.json")}


def test_two_versions_of_a_package_are_beside_each_other_and_see_nothing_of_ours(
    cache: EnvironmentCache, wheels: Path, objects: LocalObjects
):
    for version in ("1.0", "2.0"):
        manifest = probing(wheels, f"lance-spark-probe=={version}")
        interpreter = opened(cache, manifest, objects)
        assert run(manifest, interpreter, make_probe()) == [f"{version} {x}" for x in (1, 2, 3)]
        reports = run(
            manifest,
            interpreter,
            sees("pyarrow", "udf_runtime", "pytest", "lance", "pyspark", "lance_spark"),
        )
        assert set(reports) == {"pyarrow udf_runtime"}


def test_an_environment_that_is_there_is_opened_at_once(
    cache: EnvironmentCache, wheels: Path, objects: LocalObjects
):
    manifest = probing(wheels, "lance-spark-probe==1.0")
    opened(cache, manifest, objects)
    before = names(cache)
    code = f"""
import sys, time
from tests.udf_runtime.environments.conftest import opened, probing
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime import Manifest
manifest = Manifest.from_json(sys.argv[1])
began = time.perf_counter()
opened(EnvironmentCache(folder={cache.folder!r}), manifest, LocalObjects("/nowhere"))
print(time.perf_counter() - began)
"""
    process = subprocess.run(
        [sys.executable, "-c", code, manifest.to_json()], capture_output=True, text=True, check=True
    )
    assert float(process.stdout) < 0.5 and names(cache) == before


@pytest.mark.sample(2)
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_processes_that_need_one_environment_at_once_make_it_once(
    tmp_path: Path, wheels: Path, installer: str
):
    manifest = probing(wheels, "lance-spark-needs==1.0")
    code = f"""
import logging, sys
logging.basicConfig(level=logging.INFO)
from tests.udf_runtime.environments.conftest import opened
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime import Manifest
print(opened(EnvironmentCache(folder={str(tmp_path)!r}), Manifest.from_json(sys.argv[1]), LocalObjects("/nowhere")).python)
"""
    environment = {**os.environ, "LANCE_SPARK_INSTALLER": installer}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, manifest.to_json()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    pythons = {out.strip() for out, _ in outputs}
    assert len(pythons) == 1 and os.path.exists(pythons.pop()), outputs
    assert (
        sum(
            text.count("INFO:udf_runtime.environments.machine_cache:environment ")
            for _, text in outputs
        )
        == 1
    )


@pytest.mark.parametrize(
    ("requirements", "reason", "hint"),
    [
        (
            ["no-such-package-of-lance-spark==1"],
            "no-such-package-of-lance-spark",
            "correct the name or the version",
        ),
        (
            ["lance-spark-needs==1.0", "lance-spark-probe==2.0"],
            "lance-spark-probe",
            "correct the versions",
        ),
        (
            ["lance-spark-foreign==1.0", "--only-binary :all:"],
            "lance-spark-foreign",
            "wheel for the executors' platform",
        ),
        (["lance-spark-probe==7.0"], "lance-spark-probe", "correct the"),
    ],
)
def test_what_cannot_be_installed_fails_once_with_the_installers_reason(
    cache: EnvironmentCache,
    wheels: Path,
    objects: LocalObjects,
    monkeypatch: pytest.MonkeyPatch,
    requirements: list[str],
    reason: str,
    hint: str,
):
    manifest = probing(wheels, *requirements, name="wrong")
    before = names(cache)
    with pytest.raises(EnvironmentBuildError, match="Manifest: 'wrong'") as caught:
        opened(cache, manifest, objects)
    assert reason in caught.value.reason and hint in caught.value.hint
    # Who comes within a minute gets the same answer, and no installer runs.
    with monkeypatch.context() as watched:
        watched.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("an installer runs"))
        with pytest.raises(EnvironmentBuildError) as again:
            EnvironmentCache(folder=cache.folder).open(manifest, objects, Variables())
    assert str(again.value) == str(caught.value)
    assert names(cache) == before
    (failed,) = Path(cache.folder or "").glob(f"{manifest.checksum[:32]}*.failed")
    assert not failed.with_suffix("").exists()
    os.utime(failed, (0, 0))
    began = time.perf_counter()
    with pytest.raises(EnvironmentBuildError):
        opened(cache, manifest, objects)
    assert time.perf_counter() - began > 0.02


def test_an_index_that_cannot_be_reached_is_the_reason(
    cache: EnvironmentCache, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    builder = (
        Manifest.create_pip("far")
        .pip(["lance-spark-probe==1.0"])
        .index_url("http://127.0.0.1:9/simple")
    )
    with pytest.raises(EnvironmentBuildError, match=r"127\.0\.0\.1:9") as caught:
        opened(cache, builder.build(), objects)
    assert "let the executors reach the index" in caught.value.hint


def test_a_full_disk_is_the_reason(tmp_path: Path, wheels: Path):
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tests.udf_runtime.environments.conftest import opened
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime import EnvironmentBuildError, Manifest
cache = EnvironmentCache(folder={str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    opened(cache, Manifest.from_json(sys.argv[1]), LocalObjects("/nowhere"))
except EnvironmentBuildError as error:
    print(error)
"""
    manifest = probing(wheels, "lance-spark-probe==1.0")
    process = subprocess.run(
        [sys.executable, "-c", code, manifest.to_json()], capture_output=True, text=True, check=True
    )
    assert "File too large" in process.stdout and "Manifest: 'probe'" in process.stdout
    assert not list(tmp_path.glob("*/environment.json"))


class _IndexServer(http.server.BaseHTTPRequestHandler):
    """A package index that requires a password, and serves authorized requests."""

    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        index: IndexServer = self.server  # type: ignore[assignment]
        if self.headers.get("Authorization") is None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        index.seen.append(self.headers["Authorization"])
        index.may_answer.wait(60)
        self.send_response(404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:  # type: ignore[override]
        pass


class IndexServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _IndexServer)
        self.seen: list[str] = []
        self.may_answer = threading.Event()


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with IndexServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.may_answer.set()
        server.shutdown()


def guarded(index: IndexServer) -> Manifest:
    url = f"http://user:${{INDEX_TOKEN}}@127.0.0.1:{index.server_address[1]}/simple"
    builder = Manifest.create_pip("guarded").pip(["lance-spark-probe==1.0"]).index_url(url)
    return builder.env_vars({"INDEX_TOKEN": "t0ken-of-the-index"}).build()


@pytest.mark.sample(1)
def test_a_password_of_an_index_is_used_and_shown_nowhere(
    tmp_path: Path, index: IndexServer, objects: LocalObjects
):
    cache, variables = (
        EnvironmentCache(folder=str(tmp_path / "c")),
        Variables({"INDEX_TOKEN": "t0ken-of-the-index"}),
    )
    messages: list[str] = []

    def look() -> None:
        while not index.seen:
            time.sleep(0.01)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                messages.append(" ".join(process.cmdline()) + str(process.environ()))
        index.may_answer.set()

    looking = threading.Thread(target=look)
    looking.start()
    with pytest.raises(EnvironmentBuildError) as caught:
        cache.open(guarded(index), objects, variables)
    looking.join()
    assert index.seen and any("uv" in text for text in messages)
    assert not any("t0ken" in text for text in [*messages, str(caught.value)])
    for path in (tmp_path / "c").rglob("*"):
        assert path.is_dir() or b"t0ken" not in path.read_bytes()


def test_an_installer_ends_with_the_process_that_started_it_and_the_next_one_begins_anew(
    tmp_path: Path, index: IndexServer, wheels: Path
):
    code = f"""
import sys
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime.environments.variables import Variables
from udf_runtime import Manifest
EnvironmentCache(folder={str(tmp_path)!r}).open(
    Manifest.from_json(sys.argv[1]), LocalObjects("/nowhere"), Variables({{"INDEX_TOKEN": "t0ken-of-the-index"}}))
"""
    manifest = guarded(index)
    with subprocess.Popen([sys.executable, "-c", code, manifest.to_json()]) as process:
        deadline = time.monotonic() + 30
        while not index.seen and time.monotonic() < deadline:
            time.sleep(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 2  # the supervisor and the installer
        os.kill(process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []
    index.may_answer.set()
    began = time.perf_counter()
    with pytest.raises(EnvironmentBuildError, match="guarded"):  # and not a wait for a lock
        EnvironmentCache(folder=str(tmp_path)).open(
            manifest, LocalObjects("/nowhere"), Variables({"INDEX_TOKEN": "t0ken-of-the-index"})
        )
    assert time.perf_counter() - began < 20


@pytest.mark.long
def test_the_least_used_environments_are_removed_but_none_in_use(
    tmp_path: Path, wheels: Path, objects: LocalObjects
):
    folder = str(tmp_path / "small")
    code = f"""
import sys
from tests.udf_runtime.environments.conftest import opened
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.environments.host import EnvironmentCache
from udf_runtime import Manifest
opened(EnvironmentCache(folder={folder!r}, most_bytes=1), Manifest.from_json(sys.argv[1]), LocalObjects("/nowhere"))
print("open", flush=True)
sys.stdin.read()
"""
    first, second, third = (
        Manifest.create_pip("m")
        .pip(["lance-spark-probe==1.0"])
        .find_links([str(wheels)])
        .version(v)
        .build()
        for v in "123"
    )

    def present() -> list[bool]:
        return [
            bool(list(Path(folder).glob(f"{manifest_.checksum[:32]}*/environment.json")))
            for manifest_ in (first, second, third)
        ]

    def use(manifest: Manifest) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, manifest.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        return process

    def end(process: subprocess.Popen[str]) -> None:
        process.communicate("")

    user = use(first)
    end(use(second))
    assert present() == [True, True, False]  # the first is in use
    end(use(third))
    assert present() == [True, False, True]
    end(user)
    end(use(second))
    assert present() == [False, True, False]


def test_an_environment_that_was_damaged_from_outside_is_made_again(
    tmp_path: Path, wheels: Path, objects: LocalObjects
):
    cache = EnvironmentCache(folder=str(tmp_path / "c"))
    manifest = probing(wheels, "lance-spark-probe==2.0")
    first = opened(cache, manifest, objects)
    os.unlink(first.python or "")
    probe_udf = udf(data_type=pa.string(), input_columns=["x"], manifest=manifest)(make_probe())
    with (
        UdfRunner(probe_udf, processes=ProcessSpec(interpreter=first)) as runner,
        pytest.raises(EnvironmentBuildError, match="cannot be started"),
    ):
        list(runner.run([ROWS]))
    assert run(manifest, opened(cache, manifest, objects), make_probe()) == [
        "2.0 1",
        "2.0 2",
        "2.0 3",
    ]


@pytest.mark.long
def test_numpy_1_gets_a_pyarrow_that_takes_it(cache: EnvironmentCache, objects: LocalObjects):
    manifest = Manifest.create_pip("numpy").pip(["numpy==1.26.4"]).build()

    def version(x: int) -> str:
        import numpy as np
        import pyarrow as pa

        return f"{np.__version__} {pa.array(np.array([x])).to_pylist()}"

    assert run(manifest, opened(cache, manifest, objects), version) == [
        f"1.26.4 [{x}]" for x in (1, 2, 3)
    ]


OTHER_PYTHON = next((release for release in ("3.12", "3.13", "3.11") if release != current_python() and (
    list(Path.home().glob(f".pyenv/versions/{release}.*/bin/python{release}")) or Path(f"/usr/bin/python{release}").exists()
)), None)  # fmt: skip


@pytest.mark.skipif(OTHER_PYTHON is None, reason="this machine has one version of Python")
def test_another_version_of_python_runs_functions_of_modules(
    cache: EnvironmentCache, objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    interpreter_folders = [
        *Path.home().glob(f".pyenv/versions/{OTHER_PYTHON}.*/bin"),
        Path("/usr/bin"),
    ]
    monkeypatch.setenv(
        "PATH", os.pathsep.join([*map(str, interpreter_folders), os.environ["PATH"]])
    )
    (tmp_path / "other_python.py").write_text(
        "import sys\ndef version(x: int) -> str:\n    return '%d.%d' % sys.version_info[:2]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import other_python  # type: ignore[import-not-found]

    builder = (
        Manifest.create_pip("other")
        .python_version(OTHER_PYTHON or "")
        .py_modules([str(tmp_path / "other_python.py")])
    )
    manifest = builder.build()
    archives.upload(manifest.archives, objects)
    assert (
        run(manifest, opened(cache, manifest, objects), other_python.version) == [OTHER_PYTHON] * 3
    )


def test_a_version_of_python_that_is_nowhere_is_the_reason(
    cache: EnvironmentCache, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LANCE_SPARK_INSTALLER", "pip")
    with pytest.raises(EnvironmentBuildError, match=r"no Python 3\.99 here.*Install python3\.99"):
        opened(cache, Manifest.create_pip("x").python_version("3.99").build(), objects)


def test_archives_go_through_the_store_in_parts_and_are_verified(
    cache: EnvironmentCache, objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in (archives, unpacked):
        monkeypatch.setattr(module, "PART_BYTES", 1000)
    package = tmp_path / "things"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("from things.deep import NUMBER\n")
    (package / "deep" / "__init__.py").write_text(
        f"NUMBER = 7\nNOISE = {os.urandom(3000).hex()!r}\n"
    )
    (package / "run.sh").write_text("echo run\n")
    (package / "run.sh").chmod(0o755)
    manifest = Manifest.create_pip("m").py_modules([str(package)]).build()
    archives.upload(manifest.archives, objects)
    (archive,) = manifest.archives
    parts = objects.list(f"environments/{archive.sha256}")
    assert len(parts) == -(-archive.size // 1000) + 1

    def use(x: int) -> str:
        import subprocess

        import things  # type: ignore[import-not-found]

        ran = subprocess.run(
            [things.__path__[0] + "/run.sh"], shell=True, capture_output=True, text=True, check=True
        )
        return f"{things.NUMBER} {ran.stdout}"

    assert run(manifest, opened(cache, manifest, objects), use) == ["7 run\n"] * 3
    assert Manifest.create_pip("m").py_modules([str(package)]).build().checksum == manifest.checksum
    altered = LocalObjects(str(tmp_path / "altered"))
    archives.upload(manifest.archives, altered)
    altered.put(f"environments/{archive.sha256}/1", b"x")
    cold = EnvironmentCache(folder=str(tmp_path / "cold"))
    with pytest.raises(EnvironmentBuildError, match="was altered"):
        opened(cold, manifest, altered)
    empty_cache = EnvironmentCache(folder=str(tmp_path / "missing"))
    with pytest.raises(EnvironmentBuildError, match="is not in the tables' store"):
        opened(empty_cache, manifest, LocalObjects(str(tmp_path / "empty")))


@pytest.mark.sample(1)
def test_an_archive_cannot_write_outside_of_its_folder(tmp_path: Path, objects: LocalObjects):
    import hashlib
    import io
    import zipfile

    from udf_runtime.environments.manifest import Archive

    for name, mode in (("../out.py", 0o100644), ("/out.py", 0o100644), ("link", 0o120777)):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive_file:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive_file.writestr(info, "x")
        data = buffer.getvalue()
        archive = Archive(sha256=hashlib.sha256(data).hexdigest(), size=len(data), role="modules")
        objects.put(unpacked.part_path(archive.sha256, 0), data)
        with pytest.raises(unpacked.ArchiveError, match="leads out of its folder"):
            unpacked.unpack(
                archive, objects, str(tmp_path / f"to-{hashlib.md5(name.encode()).hexdigest()}")
            )


def test_installed_packages_come_along_behind_those_of_the_manifest(
    cache: EnvironmentCache,
    wheels: Path,
    objects: LocalObjects,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "own_things.py").write_text("WHERE = __file__\n")
    (ours / "extra").mkdir()
    (ours / "extra.pth").write_text("extra\n")
    (ours / "extra" / "own_extra.py").write_text("")
    monkeypatch.setattr(archives, "_package_folders", lambda: [str(ours)])
    manifest = (
        Manifest.create_pip("site").pip(["pyarrow"]).allow_unpinned().upload_site_packages().build()
    )
    archives.upload(manifest.archives, objects, delete_local=True)
    interpreter = opened(cache, manifest, objects)
    reports = run(manifest, interpreter, sees("own_things", "own_extra", "pyarrow", "pytest"))
    assert set(reports) == {"own_things own_extra pyarrow"}
    foreign = Manifest.from_json(manifest.to_json().replace("linux-", "plan9-"))
    with pytest.raises(EnvironmentBuildError, match=r"its packages are for cp3\d+-plan9-"):
        opened(cache, foreign, objects)


def test_without_installed_packages_a_udf_has_those_of_the_executor(
    cache: EnvironmentCache, objects: LocalObjects, tmp_path: Path
):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "lance_spark_mine.py").write_text("")
    (tmp_path / "project" / ".hidden.py").write_text("")
    workspace = archives.workspace_archive(str(tmp_path / "project"))
    archives.upload([workspace], objects)
    manifest = Manifest(
        name="w", python_version=current_python(), archives=(workspace,), skip_site_packages=True
    )
    reports = run(
        manifest, opened(cache, manifest, objects), sees("lance_spark_mine", "pytest", "lance")
    )
    assert set(reports) == {"lance_spark_mine pytest lance"}


def test_what_is_written_of_an_environment_is_its_manifest(
    cache: EnvironmentCache, wheels: Path, objects: LocalObjects
):
    manifest = probing(wheels, "lance-spark-probe==1.0")
    folder = opened(cache, manifest, objects).folder
    stored_json = json.loads(Path(folder or "", "environment.json").read_text())
    assert (
        Manifest.from_dict(stored_json["manifest"]).checksum == manifest.checksum
        and stored_json["bytes"] > 1 << 20
    )


def test_a_new_wheel_of_another_version_of_the_manifest_is_another_environment(
    cache: EnvironmentCache, objects: LocalObjects, tmp_path: Path
):
    wheel(tmp_path, "lance_spark_later", "1.0")
    builder = (
        Manifest.create_pip("later")
        .pip(["lance-spark-later"])
        .find_links([str(tmp_path)])
        .allow_unpinned()
    )
    first = builder.build()
    wheel(tmp_path, "lance_spark_later", "1.1")
    second = builder.version("2").build()

    def version(x: int) -> str:
        import lance_spark_later  # type: ignore[import-not-found]

        return str(lance_spark_later.VERSION)

    opened(cache, first, objects)
    assert set(run(second, opened(cache, second, objects), version)) == {"1.1"}


def test_without_an_index_all_packages_come_from_the_folders(
    cache: EnvironmentCache, wheels: Path, objects: LocalObjects
):
    builder = (
        Manifest.create_pip("offline")
        .pip(["lance-spark-probe==1.0"])
        .find_links([str(wheels)])
        .no_index()
    )
    with pytest.raises(EnvironmentBuildError, match="pyarrow") as caught:
        opened(cache, builder.build(), objects)
    assert "lance-spark-probe" not in caught.value.reason.partition("pyarrow")[0]


def test_a_process_serves_runners_of_its_udf_until_its_end_in_order(
    cache: EnvironmentCache, wheels: Path, objects: LocalObjects
):
    manifest = probing(wheels, "lance-spark-probe==1.0")
    interpreter = opened(cache, manifest, objects)

    def pid(x: int) -> str:
        return str(os.getpid())

    def other_function(x: int) -> str:
        return str(os.getpid())

    def of(function: Callable[[int], str]) -> int:
        function_udf = udf(data_type=pa.string(), input_columns=["x"], manifest=manifest)(function)
        with UdfRunner(function_udf, processes=ProcessSpec(interpreter=interpreter)) as runner:
            (result,) = runner.run([ROWS])
        return int(result.values[0].as_py())

    first = of(pid)
    assert of(pid) == of(pid) == first and psutil.pid_exists(first)
    second = of(other_function)
    assert second != first and of(pid) == first and of(other_function) == second
    ProcessRegistry(Owner.current()).end_all_idle()
    assert not psutil.pid_exists(first) and not psutil.pid_exists(second)
