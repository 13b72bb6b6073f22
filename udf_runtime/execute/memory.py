"""Calls that ran out of memory: their errors, and the number of rows that fits into memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import sys
import threading
import traceback
from collections.abc import Iterator

from udf_runtime.errors import UdfOutputError, UdfRuntimeError
from udf_runtime.policies.matchers import message_of

_CLASSES = frozenset(
    {
        "torch.OutOfMemoryError",  # since torch 2.5
        "torch.cuda.OutOfMemoryError",
        "cupy.cuda.memory.OutOfMemoryError",
    }
)
"""Classes for a lack of memory on a device, by name, since their modules may be missing here."""

_LIBRARIES = ("onnxruntime", "torch", "cupy_backends", "cupy", "tensorflow", "jax", "jaxlib")
"""Libraries whose other classes of errors need a look at the message, as `RuntimeError` does."""

_MESSAGE = re.compile(
    "out of memory|failed to allocate memory|can't allocate memory|not enough memory|bad_alloc|bad allocation|"
    "(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|OOM when allocating",
    re.IGNORECASE,
)

_MOST_JOBS = 64


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tells whether an error means a lack of memory of a device or of the process.

    The class may be `MemoryError`, or the class of torch or CuPy for this purpose. Any other error
    of a library for models, or a `RuntimeError`, needs a message about memory. The check imports no
    library.
    """
    if isinstance(error, UdfOutputError):  # a result that was too large for its conversion
        return is_out_of_memory(error.__cause__)
    if error is None or isinstance(error, UdfRuntimeError):
        return False
    classes = type(error).__mro__
    if isinstance(error, MemoryError) or any(
        f"{cls.__module__}.{cls.__qualname__}" in _CLASSES for cls in classes
    ):
        return True
    says = isinstance(error, RuntimeError) or any(
        cls.__module__.partition(".")[0] in _LIBRARIES for cls in classes
    )
    return says and _MESSAGE.search(message_of(error)) is not None


def free_memory(error: BaseException) -> None:
    """Drops the variables of the failed call, with batches and arrays, and collects garbage.

    The traceback keeps its lines. Free device memory that torch and CuPy hold goes back to the
    device, because other processes may share the device.
    """
    cleared_ids: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if cause is not None and id(cause) not in cleared_ids:
            cleared_ids.add(id(cause))
            traceback.clear_frames(cause.__traceback__)
            pending += [cause.__cause__, cause.__context__]
    gc.collect()
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    with contextlib.suppress(Exception):  # another error of the device must not hide the first
        if torch is not None:
            torch.cuda.empty_cache()  # has no effect before the first use of a device
        if cupy is not None:
            cupy.get_default_memory_pool().free_all_blocks()


class RowLimit:
    """The maximum number of rows of a call, after calls ran out of memory. Thread-safe.

    Attributes:
        most: The number of rows; None before a call ran out of memory.
    """

    def __init__(self) -> None:
        self.most: int | None = None
        self._lock = threading.Lock()

    def lower(self, rows: int) -> None:
        """Lowers the maximum to a number of rows."""
        with self._lock:
            self.most = rows if self.most is None else min(self.most, rows)

    def slices(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yields the first row and the number of rows of each call for a batch.

        A lower maximum applies from the next slice on.
        """
        start = 0
        while start < rows:
            count = min(rows - start, self.most or rows)
            yield start, count
            start += count


@functools.lru_cache(maxsize=_MOST_JOBS)
def row_limit_of(job: str) -> RowLimit:  # noqa: ARG001 - the key of the cache
    """Returns the limit of a job in this process, for all tasks of the job."""
    return RowLimit()
