"""Limits on threads: variables of UDF processes, and imports of torch and onnxruntime, with modules that stand in
and with the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from udf_runtime.definition import UDF, Kind
from udf_runtime.definition.spec import Settings
from udf_runtime.environments.variables import Variables
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.process import Interpreter, ProcessSpec
from udf_runtime.execute.threads import THREAD_NAMES, thread_count

TORCH = """
calls = []
set_num_threads = calls.append
def set_num_interop_threads(count):
    raise RuntimeError("the pool has started")
"""

ONNXRUNTIME = """
class SessionOptions:
    intra_op_num_threads = inter_op_num_threads = 0
class InferenceSession:
    def __init__(self, model, sess_options=None, providers=None):
        self.options, self.providers = sess_options, providers
"""

THREADPOOLCTL = """
calls = []
threadpool_limits = calls.append
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with modules of the names of native libraries."""
    for name, source in (
        ("torch", TORCH),
        ("onnxruntime", ONNXRUNTIME),
        ("threadpoolctl", THREADPOOLCTL),
    ):
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_NAMES:
        monkeypatch.delenv(name, raising=False)


def observe() -> str:
    """Returns the thread variables and the threads of stand-in libraries, as JSON."""
    import onnxruntime  # type: ignore[import-not-found]
    import torch  # type: ignore[import-not-found]

    own = onnxruntime.SessionOptions()
    own.intra_op_num_threads = 7
    sessions = [onnxruntime.InferenceSession("m"), onnxruntime.InferenceSession("m", own, ["cpu"])]
    return json.dumps({
        "variables": {name: os.environ.get(name) for name in THREAD_NAMES},
        "torch": torch.calls,
        "sessions": [[s.options.intra_op_num_threads, s.options.inter_op_num_threads, s.providers] for s in sessions],
        "loader": type(torch.__spec__.loader).__name__,
    })  # fmt: skip


def observe_in_process(
    num_cpus: float | None,
    interpreter: Interpreter | None = None,
    *,
    observe: Callable[[], str] = observe,
) -> dict[str, object]:
    """Returns the observation of a UDF's process."""
    observing = UDF.define(
        lambda x: pa.array([observe()]),
        kind=Kind.ARROW,
        data_type=pa.string(),
        input_columns=["x"],
        version="1",
        settings=Settings(num_cpus=num_cpus),
    )
    with UdfRunner(
        observing, isolate=True, processes=ProcessSpec(interpreter=interpreter or Interpreter())
    ) as runner:
        (result,) = runner.run([pa.record_batch({"x": [1]})])
    return json.loads(result.values[0].as_py())


@pytest.mark.long
def test_a_udf_process_has_as_many_threads_as_cores(modules: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")  # set by the user
    assert observe_in_process(3) == {
        "variables": {
            "OMP_NUM_THREADS": "3",
            "MKL_NUM_THREADS": "5",
            "OPENBLAS_NUM_THREADS": "3",
            "RAYON_NUM_THREADS": "3",
            "TOKENIZERS_PARALLELISM": "true",
        },
        "torch": [3],
        "sessions": [[3, 3, None], [7, 3, ["cpu"]]],
        "loader": "SourceFileLoader",
    }
    variables = Variables(
        {"OMP_NUM_THREADS": "6", "TOKENIZERS_PARALLELISM": "maybe"}
    )  # of a manifest
    path = tuple(entry for entry in sys.path if entry)
    observed = observe_in_process(
        None, Interpreter(python=sys.executable, path=path, variables=variables)
    )
    assert observed["variables"] == {
        "OMP_NUM_THREADS": "6",
        "MKL_NUM_THREADS": "5",
        "OPENBLAS_NUM_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "maybe",
    }
    assert observed["torch"] == [6]


@pytest.mark.long
@pytest.mark.parametrize("num_cpus", [1, 2])
def test_the_real_libraries_have_as_many_threads_as_cores(num_cpus: int):
    pytest.importorskip("rapidocr_onnxruntime")
    pytest.importorskip("threadpoolctl")

    def count_threads() -> str:
        import glob

        import numpy as np
        import onnxruntime
        import rapidocr_onnxruntime
        import threadpoolctl

        (model,) = glob.glob(f"{os.path.dirname(rapidocr_onnxruntime.__file__)}/models/*cls*.onnx")
        before = len(os.listdir("/proc/self/task"))
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        np.ones((50, 50)) @ np.ones((50, 50))
        pools = {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
        added = len(os.listdir("/proc/self/task")) - before
        del session
        return json.dumps({"pools": sorted(pools), "threads of the session": added + 1})

    assert observe_in_process(num_cpus, observe=count_threads) == {
        "pools": [num_cpus],
        "threads of the session": num_cpus,
    }


def test_a_running_process_is_limited_again_for_another_udf(modules: Path):
    script = """
import os
from udf_runtime.execute.threads import limit_threads
os.environ["RAYON_NUM_THREADS"] = "9"
limit_threads(None)
import torch, onnxruntime, threadpoolctl
limit_threads(2.5)
limit_threads(2.5)
assert torch.calls == [1, 2] and threadpoolctl.calls == [1, 2], (torch.calls, threadpoolctl.calls)
assert onnxruntime.InferenceSession("m").options.intra_op_num_threads == 2
assert [os.environ[name] for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM")] == ["2", "9", "true"]
"""
    path = os.pathsep.join([str(modules), str(Path(__file__).parents[3])])
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, check=True
    )


def test_a_share_of_a_core_is_one_thread():
    assert [thread_count(cpus) for cpus in (None, 0, 0.25, 1, 2.9)] == [1, 1, 1, 1, 2]
