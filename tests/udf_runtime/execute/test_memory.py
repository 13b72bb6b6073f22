"""Calls that run out of memory: smaller calls, and a policy that decides about single rows."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.udf_runtime.execute.cases import batches_of, failed_rows, make, run, values_of
from udf_runtime.definition import Kind
from udf_runtime.errors import UdfFailedError, UdfOutputError
from udf_runtime.execute.memory import free_memory, is_out_of_memory
from udf_runtime.policies import Fail, Retry, Skip, skip_on_error


def class_of(name: str, *bases: type[BaseException]) -> type[BaseException]:
    """Returns a stand-in for the exception class of a library."""
    module, _, qualname = name.rpartition(".")
    return type(qualname, bases or (Exception,), {"__module__": module})


no_collection = mock.patch(
    "udf_runtime.execute.memory.gc.collect", int
)  # takes long with the objects of Hypothesis

ORT = "onnxruntime.capi.onnxruntime_pybind11_state"
ARENA = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Expand node. Name:'n' Status Message: "
    "bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) "
    "Failed to allocate memory for requested buffer of size 281474976710656"
)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("f8")),
        pa.ArrowMemoryError("malloc of size 64 failed"),
        class_of("torch.OutOfMemoryError", RuntimeError)(
            "CUDA out of memory. Tried to allocate 2.00 GiB."
        ),
        class_of("torch.cuda.OutOfMemoryError", RuntimeError)(""),
        type("Own", (class_of("torch.OutOfMemoryError", RuntimeError),), {})("a subclass"),
        class_of("cupy.cuda.memory.OutOfMemoryError", MemoryError)(
            "Out of memory allocating 512 bytes"
        ),
        class_of("cupy_backends.cuda.api.runtime.CUDARuntimeError", RuntimeError)(
            "cudaErrorMemoryAllocation: out of memory"
        ),
        class_of(f"{ORT}.Fail")(ARENA),
        class_of(f"{ORT}.RuntimeException")(
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc"
        ),
        class_of("torch.AcceleratorError", RuntimeError)("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you"
        ),
        class_of("jaxlib.xla_extension.XlaRuntimeError", RuntimeError)(
            "RESOURCE_EXHAUSTED: Out of memory while trying"
        ),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__qualname__}",
)
def test_a_lack_of_memory_is_recognized_without_the_library(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("out of memory"),
        RuntimeError("the printer is out of paper"),
        class_of(f"{ORT}.InvalidArgument")(
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions"
        ),
        class_of("shop.OutOfMemoryError")("sold out"),
        UdfFailedError(
            udf="f",
            row=None,
            error_type="MemoryError",
            error_message="out of memory",
            error_trace="",
        ),
        UdfOutputError("too large", udf="f"),
    ],
    ids=repr,
)
def test_other_errors_are_no_lack_of_memory(error):
    assert not is_out_of_memory(error)


def test_the_lack_of_memory_of_a_conversion_is_recognized():
    error = UdfOutputError("too large", udf="f")
    error.__cause__ = pa.ArrowMemoryError("malloc of size 64 failed")
    assert is_out_of_memory(error)


class Device:
    """A function that runs out of memory above a number of rows, and for some values alone."""

    def __init__(self, room: int, large: set[int] = frozenset()) -> None:
        self.room = room
        self.large = set(large)
        self.sizes: list[int] = []

    def __call__(self, x: pa.Array) -> pa.Array:
        self.sizes.append(len(x))
        if len(x) > self.room or self.large & set(x.to_pylist()):
            raise class_of("torch.OutOfMemoryError", RuntimeError)("CUDA out of memory")
        return x


def on(device: Device, kind: Kind = Kind.ARROW, **options):
    def stream(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield device(batch)

    return make((lambda x: device(x)) if kind is Kind.ARROW else stream, kind, **options)  # noqa: PLW0108 - would be copied


@no_collection
def test_a_batch_that_does_not_fit_is_halved_without_a_policy_and_later_calls_keep_the_size():
    device = Device(room=3)
    results = run(on(device), *batches_of(list(range(8)), list(range(8)), [1]))
    assert values_of(results) == [list(range(8)), list(range(8)), [1]]
    assert device.sizes == [8, 4, 2, 2, 2, 2, 2, 2, 2, 2, 1]
    assert [result.batch_rows for result in results] == [2, 2, 2] and not any(
        result.retries for result in results
    )


@no_collection
def test_the_size_holds_for_all_runners_of_a_job_in_this_process():
    device = Device(room=4)
    for job, sizes in (("job-1", [8, 4, 4]), ("job-1", [4, 4]), ("job-2", [8, 4, 4])):
        device.sizes.clear()
        assert run(on(device), *batches_of(list(range(8))), job=job)[0].batch_rows == 4
        assert device.sizes == sizes


@no_collection
@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 60),
    room=st.integers(1, 60),
    large=st.sets(st.integers(0, 59), max_size=2),
    kind=st.sampled_from([Kind.ARROW, Kind.ARROW_ITER]),
)
def test_a_row_that_is_too_large_alone_costs_its_value_and_no_size(rows, room, large, kind):
    device = Device(room, large)
    batch = list(range(rows))
    first, second = run(
        on(device, kind, on_error=skip_on_error()),
        *batches_of(batch, [row + 1000 for row in batch]),
    )
    large_rows = sorted(row for row in large if row < rows)
    assert failed_rows(first) == large_rows and not failed_rows(second)
    assert first.values.to_pylist() == [None if row in large else row for row in batch]
    assert second.values.to_pylist() == [row + 1000 for row in batch]
    most = second.batch_rows
    assert most is None if rows <= room else most <= room
    if large_rows and rows <= room:
        assert first.batch_rows is None
    elif not large_rows and rows > room:
        assert most > room // 2  # no size is given up that fits


@no_collection
def test_a_policy_decides_about_a_row_that_is_alone():
    waits: list[float] = []
    for policy in (
        None,
        Fail(RuntimeError),
        [Fail(RuntimeError), Skip()],
        [Retry(RuntimeError, max_attempts=2)],
    ):
        device = Device(room=8, large={5})
        with pytest.raises(UdfFailedError) as caught:
            run(on(device, on_error=policy), *batches_of(list(range(8))), sleep=waits.append)
        assert (caught.value.row, caught.value.error_type) == (5, "torch.OutOfMemoryError")
        retried = isinstance(policy, list) and isinstance(policy[0], Retry)
        assert device.sizes == [8, 4, 4, 2, 1, 1, *([1] if retried else [])]
        assert (caught.value.attempt, len(waits)) == ((2, 1) if retried else (1, 0))


@no_collection
def test_a_skipped_row_is_retried_alone_only_and_its_record_counts_the_halvings():
    device = Device(room=8, large={5})
    result = run(on(device, on_error=[Retry(max_attempts=3), Skip()]), *batches_of(list(range(8))))[
        0
    ]
    assert device.sizes == [8, 4, 4, 2, 1, 1, 1, 1, 2] and result.retries == 2
    failure = result.failures[0]
    assert (failure.row, failure.attempt, failure.max_attempts, failure.bisect_depth) == (
        5,
        3,
        3,
        3,
    )


def test_a_lack_of_memory_is_no_attempt_of_a_retry():
    sizes: list[int] = []

    def work(x: pa.Array) -> pa.Array:
        sizes.append(len(x))
        if len(sizes) < 3:
            raise ConnectionError
        if len(x) > 2:
            raise MemoryError
        return x

    result = run(
        make(work, Kind.ARROW, on_error=Retry(ConnectionError, max_attempts=3)),
        *batches_of([1, 2, 3, 4]),
    )[0]
    assert sizes == [4, 4, 4, 2, 2] and (result.retries, result.batch_rows) == (2, 2)


@pytest.mark.parametrize("kind", [Kind.ARROW, Kind.ARROW_ITER])
def test_the_memory_of_a_failed_call_is_free_before_the_next_call(kind):
    class Tensor:
        pass

    held: list[weakref.ref[Tensor]] = []
    seen: list[bool] = []

    def call(x: pa.Array) -> pa.Array:
        seen.append(any(tensor() is not None for tensor in held))
        tensor = Tensor()
        tensor.itself = tensor  # a cycle, which only the garbage collector frees
        held.append(weakref.ref(tensor))
        if len(x) > 1:
            try:
                int("the first error")
            except ValueError:
                raise MemoryError from None
        return x

    def stream(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield call(batch)

    gc.disable()
    try:
        run(make(call if kind is Kind.ARROW else stream, kind), *batches_of([1, 2]))
    finally:
        gc.enable()
    assert seen[:2] == [
        False,
        False,
    ]  # after the third call a cycle of the successful second call is left


@no_collection
def test_a_generator_gets_batches_of_the_size_that_worked():
    device = Device(room=3)
    results = run(on(device, Kind.ARROW_ITER), *batches_of(list(range(8)), list(range(7)), [1]))
    assert values_of(results) == [list(range(8)), list(range(7)), [1]]
    assert device.sizes == [8, 4, 2, 2, 2, 2, 2, 2, 2, 1, 1] and results[-1].batch_rows == 2
    device.sizes.clear()
    run(on(device, Kind.ARROW_ITER, batch_size=3), *batches_of(list(range(8))), job="generator")
    assert device.sizes == [3, 3, 2]


def test_the_traceback_of_a_freed_error_keeps_its_lines():
    def fail() -> None:
        rows = list(range(10))
        raise MemoryError(len(rows))

    try:
        fail()
    except MemoryError as error:
        free_memory(error)
        frame = error.__traceback__.tb_next
        assert frame.tb_frame.f_code.co_name == "fail" and not frame.tb_frame.f_locals


def test_unused_memory_of_libraries_goes_back_to_the_device(monkeypatch: pytest.MonkeyPatch):
    torch, cupy = mock.MagicMock(), mock.MagicMock()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    device = Device(room=1)
    run(on(device), *batches_of([1, 2]))
    torch.cuda.empty_cache.assert_called_once_with()
    cupy.get_default_memory_pool().free_all_blocks.assert_called_once_with()
    torch.cuda.empty_cache.side_effect = RuntimeError("CUDA error: unspecified launch failure")
    assert values_of(run(on(device), *batches_of([1, 2]))) == [[1, 2]]


def test_batches_of_a_generator_run_alone_after_a_lack_of_memory(tmp_path):
    sizes: list[int] = []

    def work(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        read = [next(batches, None) for _ in range(2)]
        sizes.append(sum(len(batch) for batch in read if batch is not None))
        if sizes[-1] > 4:
            raise MemoryError
        yield from (batch for batch in read if batch is not None)
        yield from batches

    results = run(make(work, Kind.ARROW_ITER), *batches_of([1, 2, 3], [4, 5, 6], [7]))
    assert values_of(results) == [[1, 2, 3], [4, 5, 6], [7]] and sizes[:3] == [6, 3, 3]
    assert results[0].batch_rows is None  # one batch fits, two did not


@pytest.mark.long
def test_a_process_of_its_own_halves_and_the_next_process_keeps_the_size(tmp_path):
    log = tmp_path / "log"

    def work(x: pa.Array) -> pa.Array:
        with log.open("a") as file:
            file.write(f"{len(x)} ")
        if len(x) > 2 or 7 in x.to_pylist():
            raise MemoryError
        return x

    udf = make(work, Kind.ARROW, on_error=Skip(MemoryError))
    result = run(udf, *batches_of(list(range(4))), isolate=True, job="isolated")[0]
    assert (result.values.to_pylist(), result.batch_rows) == ([0, 1, 2, 3], 2)
    second = run(udf, *batches_of([4, 5, 6, 7, 8]), isolate=True, job="isolated")[0]
    assert (second.values.to_pylist(), failed_rows(second)) == ([4, 5, 6, None, 8], [3])
    assert log.read_text().split() == ["4", "2", "2", "2", "2", "1", "1", "1"]
