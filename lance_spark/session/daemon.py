"""Spark's daemon of Python workers, with what reading a table imports already imported.

Spark forks a worker for each task that finds none idle, and ends one whose task fails or stops
early. A worker that is forked here is ready 1 to 2 s of processor time sooner (measured). `lance`
is left to the workers: it takes 30 ms, and is not made to be forked.

The daemon has one thread when it forks. The one of Arrow's jemalloc is not started, as nothing here
allocates with it, and numpy starts none with the OMP_NUM_THREADS that Spark sets for workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os

_NO_THREAD = ("JE_ARROW_MALLOC_CONF", "background_thread:false")

_KEPT_BYTES = 1 << 28
"""Free memory at the end of its heap that a worker keeps."""

_MALLOC = {"M_TRIM_THRESHOLD": (-1, _KEPT_BYTES), "M_MMAP_MAX": (-4, 0), "M_ARENA_MAX": (-8, 1)}
"""Numbers and values of glibc's `mallopt`."""

_MODULES = (
    "pandas",
    "pyarrow.dataset",
    "lance_spark.datasource",
    "lance_spark.read.aggregates.grouped",
    "lance_spark.read.aggregates.ungrouped",
    "lance_spark.read.planned",
    "lance_spark.read.reader",
    "lance_spark.read.scan",
)


def preload() -> None:
    """Imports what workers need."""
    key, value = _NO_THREAD
    before = os.environ.get(key)
    os.environ[key] = value if before is None else f"{before},{value}"
    for name in _MODULES:
        importlib.import_module(name)
    if before is None:
        del os.environ[key]
    else:
        os.environ[key] = before


def keep_memory() -> None:
    """Has this process and its forks use memory again that Lance has freed.

    Lance reads into buffers of many megabytes. glibc gives those back to the system at once, and
    the system clears each page of the next one: two thirds of the time that reading vectors takes.
    A heap that grows and shrinks at its end does without, at the price of 256 MiB that a worker
    may keep. Does nothing where MALLOC_ variables or GLIBC_TUNABLES say otherwise, or on another
    C library.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for number, value in _MALLOC.values():
            mallopt(number, value)


if __name__ == "__main__":
    from pyspark import daemon

    from lance_spark.interpreter import quietly

    keep_memory()
    preload()
    # Workers collect garbage after each task: with all this to look through that takes 50 ms.
    gc.freeze()
    daemon.worker = quietly(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
