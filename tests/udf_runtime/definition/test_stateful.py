from __future__ import annotations

import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

from udf_runtime import UDF, Kind, UdfDefinitionError, as_udf, udf
from udf_runtime.definition import UdfFactory, forget_instances
from udf_runtime.definition.stateful import Stateful

ROOT = Path(__file__).parents[3]


class EventLog:
    """Events of instances in this process."""

    events: list[str] = []  # noqa: RUF012  # shared on purpose


@pytest.fixture(autouse=True)
def nothing_made_yet() -> Iterator[None]:
    EventLog.events.clear()
    forget_instances()
    yield
    forget_instances()


@udf(data_type=pa.float32(), num_gpus=1, version="1")
class Embed:
    def __init__(self, model: str, size: int = 3) -> None:
        EventLog.events.append(f"init {model} {size}")
        time.sleep(0.02)  # a chance for a second thread to come in between
        self.model = model

    def setup(self) -> None:
        EventLog.events.append("setup")

    def __call__(self, text: pa.Array) -> pa.Array:
        return pa.array([float(len(self.model))] * len(text), pa.float32())


@udf
class Twice:
    def __call__(self, a: int) -> int:
        return a * 2


def test_a_decorated_class_is_a_factory_that_constructs_nothing():
    embed_udf = Embed(model="abc")
    assert isinstance(Embed, UdfFactory)
    assert (embed_udf.name, embed_udf.kind, embed_udf.input_columns, embed_udf.num_gpus) == (
        "Embed",
        Kind.ARROW,
        ("text",),
        1,
    )
    UDF.loads(embed_udf.dumps())
    assert EventLog.events == []


def test_an_instance_is_made_and_set_up_once_per_process_by_whichever_thread_comes_first():
    embed_udf = Embed(model="abc")
    payload = embed_udf.dumps()
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(UDF.loads(payload).load())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(result) for result in results}) == 1
    assert EventLog.events == ["init abc 3", "setup"]
    assert UDF.loads(payload).with_input_columns(["t"]).load() is results[0]


def test_the_defining_process_makes_one_too():
    embed_udf = Embed("ab", size=4)
    assert embed_udf(pa.array(["x"])).to_pylist() == [2.0]
    assert embed_udf.load() is embed_udf.with_input_columns(["t"]).load()
    assert EventLog.events == ["init ab 4", "setup"]


def test_other_arguments_are_another_instance():
    udf_a, udf_b = UDF.loads(Embed("a").dumps()), UDF.loads(Embed("b").dumps())
    assert udf_a.load() is not udf_b.load()
    assert EventLog.events == ["init a 3", "setup", "init b 3", "setup"]


def test_a_constructor_that_fails_is_tried_again():
    @udf(version="1")
    class Flaky:
        def __init__(self) -> None:
            EventLog.events.append("try")
            if len(EventLog.events) < 2:
                raise ConnectionError("no model yet")

        def __call__(self, a: int) -> int:
            return a

    flaky_udf = Flaky()
    with pytest.raises(ConnectionError):
        flaky_udf.load()
    assert flaky_udf(3) == 3
    assert EventLog.events == ["try", "try"]


def test_arguments_that_do_not_fit_are_found_where_they_are_given():
    for args, kwargs in (((), {}), (("a",), {"sise": 3}), (("a", 1, 2), {})):
        with pytest.raises(UdfDefinitionError, match=r"do not fit the constructor.*Embed\(model"):
            Embed(*args, **kwargs)


def test_a_class_that_cannot_be_a_udf_is_found_where_it_is_decorated():
    class Silent:
        pass

    class Untyped:
        def __call__(self, a):
            return a

    with pytest.raises(UdfDefinitionError, match="class Silent has no method __call__"):
        udf(Silent)
    with pytest.raises(UdfDefinitionError, match="The result has no annotation"):
        udf(Untyped)
    with pytest.raises(UdfDefinitionError, match="is a class"):
        UDF.define(Untyped, data_type=pa.int8())


def test_as_udf_calls_a_factory_that_needs_no_arguments():
    twice_udf = as_udf(Twice)
    assert twice_udf is not None and twice_udf(4) == 8
    with pytest.raises(UdfDefinitionError, match="do not fit the constructor"):
        as_udf(Embed)


def test_the_version_follows_the_class_and_the_arguments_however_they_are_given():
    def define(by: int) -> UdfFactory:
        @udf
        class Scale:
            def __init__(self, first: int, second: int = 2) -> None:
                self.first = first * by

            def __call__(self, a: int) -> int:
                return self.helped(a)

            def helped(self, a: int) -> int:
                return a * self.first

        assert isinstance(Scale, UdfFactory)
        return Scale

    assert define(1)(1, second=3).version == define(1)(second=3, first=1).version
    assert (
        len(
            {
                define(1)(1).version,
                define(2)(1).version,
                define(1)(2).version,
                define(1)(1, 3).version,
            }
        )
        == 4
    )


def test_a_callable_object_is_unpickled_and_set_up_once_per_process():
    class Offset:
        def __init__(self, by: int) -> None:
            self.by = by

        def setup(self) -> None:
            EventLog.events.append("setup")

        def __call__(self, a: int) -> int:
            return a + self.by

    offset_udf = udf(Offset(3))
    assert (offset_udf.name, offset_udf.input_columns, offset_udf.data_type, offset_udf(1)) == (
        "Offset",
        ("a",),
        pa.int64(),
        4,
    )
    assert offset_udf.version == udf(Offset(3)).version != udf(Offset(4)).version
    payload = offset_udf.dumps()
    assert UDF.loads(payload).load() is UDF.loads(payload).load()


def test_a_class_udf_has_the_same_version_in_other_processes_and_runs_there(tmp_path: Path):
    source = """
from udf_runtime import udf
@udf
class Scale:
    names = {"a", "b", "c"}
    def __init__(self, by): self.by = by
    def setup(self): self.ready = True
    def __call__(self, a: int) -> int: return a * self.by if self.ready else 0
"""
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(source, scope)
    scale_udf = scope["Scale"](by=7)  # type: ignore[operator]
    (tmp_path / "udf").write_bytes(scale_udf.dumps())
    script = source + (
        "\nimport sys\nfrom udf_runtime import UDF\nf = UDF.loads(open(sys.argv[1], 'rb').read())\n"
        "print(f(3), f.version, Scale(by=7).version)"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "udf"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert process.stdout.split() == ["21", scale_udf.version, scale_udf.version]


def test_a_load_in_the_process_of_a_class_leaves_the_class_unchanged(
    monkeypatch: pytest.MonkeyPatch,
):
    notebook = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    exec("import pyarrow as pa\nclass Same:\n    def __call__(self, x: 'pa.Array') -> 'pa.Array':\n        return x", vars(notebook))  # fmt: skip
    cloudpickle.register_pickle_by_value(notebook)
    try:
        cls, call = notebook.Same, notebook.Same.__call__
        function = udf(data_type=pa.int64())(cls)()
        loaded = UDF.loads(function.dumps()).target
        assert isinstance(loaded, Stateful) and loaded.made_from is cls
        assert cls.__call__ is call
        assert udf(data_type=pa.int64())(cls)().kind is Kind.ARROW
    finally:
        cloudpickle.unregister_pickle_by_value(notebook)
