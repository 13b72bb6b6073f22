"""Spark's daemon of Python workers, with the imports of table reads done before a fork.

Spark forks a worker for each task without an idle worker, and ends a worker whose task fails or
stops early. A worker forked by this daemon saves 1 to 2 s of processor time at its start
(measured). The workers import `lance` themselves: the import takes 30 ms, and Lance is not made for
forks.

The daemon has a single thread when forking. Arrow's jemalloc thread is not started, because the
daemon does not allocate with jemalloc. numpy starts no thread with Spark's OMP_NUM_THREADS for
workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os

_NO_THREAD = ("JE_ARROW_MALLOC_CONF", "background_thread:false")

_KEPT_BYTES = 1 << 28
"""Free memory kept by a worker at the end of its heap."""

_MALLOC = {"M_TRIM_THRESHOLD": (-1, _KEPT_BYTES), "M_MMAP_MAX": (-4, 0), "M_ARENA_MAX": (-8, 1)}
"""Numbers and values of glibc's `mallopt`."""

_MODULES = (
    "pandas",
    "pyarrow.dataset",
    "lance_spark.datasource",
    "lance_spark.read.aggregates.grouped",
    "lance_spark.read.aggregates.ungrouped",
    "lance_spark.read.planning.spark_read_info",
    "lance_spark.read.reader",
    "lance_spark.read.scan",
)


def preload() -> None:
    """Imports the modules of workers."""
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
    """Has this process and its forks reuse memory freed by Lance.

    Lance reads into buffers of many megabytes. glibc returns these buffers to the system at once,
    and the system clears each page of the next buffer: two thirds of the time for reading vectors.
    A heap that grows and shrinks at its end avoids this cost, but a worker may keep 256 MiB. The
    function does nothing on another C library, or if MALLOC_ variables or GLIBC_TUNABLES are set.
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
    # Workers collect garbage after each task. Without the freeze, a collection takes 50 ms because
    # of these modules.
    gc.freeze()
    daemon.worker = quietly(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
