"""Timeouts of queries in this process: :func:`read_within`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import pyarrow as pa

from lance_spark.errors import LanceSparkError, OptionError


class QueryTimeoutError(LanceSparkError, TimeoutError, RuntimeError):
    """A query did not return its rows in time.

    Example:
        ```python
        from datetime import timedelta

        import lance_spark

        docs = lance_spark.connect("tables").open_table("docs")
        try:
            docs.search([0.1, 0.2]).to_list(timeout=timedelta(seconds=0))
        except lance_spark.QueryTimeoutError as error:
            print(error)
        ```
    """


def check_timeout(timeout: timedelta | None) -> None:
    """Checks a timeout.

    Raises:
        OptionError: The timeout is negative.
    """
    if timeout is not None and timeout < timedelta(0):
        raise OptionError("timeout", timeout, "a timedelta of zero or more, or None")


def read_within(batches: Iterator[pa.RecordBatch], timeout: timedelta | None, uri: str) -> Iterator[pa.RecordBatch]:
    """Yields batches until a timeout after this call. A thread reads the batches.

    Lance cannot interrupt a read. The thread ends with the batch in progress.

    Raises:
        QueryTimeoutError: The rows did not arrive in time. Raised during the read.
    """
    return batches if timeout is None else _read(batches, time.monotonic(), timeout, uri)


def _read(batches: Iterator[pa.RecordBatch], began: float, timeout: timedelta, uri: str) -> Iterator[pa.RecordBatch]:
    pool = ThreadPoolExecutor(1, "lance-spark-query")
    try:
        while True:
            remaining_s = min(began + timeout.total_seconds() - time.monotonic(), threading.TIMEOUT_MAX)
            future = pool.submit(next, batches, None) if remaining_s > 0 else None
            if future is None or future not in wait([future], remaining_s).done:
                raise QueryTimeoutError(
                    f"Query timeout after {timeout.total_seconds():g} s. Table: {uri}. Create an index, select fewer "
                    "rows, or give the query more time."
                )
            batch = future.result()
            if batch is None:
                return
            yield batch
    finally:
        pool.shutdown(wait=False)
