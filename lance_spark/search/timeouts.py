"""Timeouts of calls: :class:`Deadline`, and :class:`QueryDeadline` for queries in this process."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Self, TypeVar

import pyarrow as pa

from lance_spark.errors import LanceSparkError, OptionError
from lance_spark.storage.parallel_calls import in_thread

_T = TypeVar("_T")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The end of the time of a call.

    Attributes:
        began: Time of the call, by `time.monotonic`.
        timeout: The timeout; None waits for ever.
        uri: Location of the table, for the error.
    """

    began: float
    timeout: timedelta | None
    uri: str

    @classmethod
    def of(cls, timeout: timedelta | None, uri: str) -> Self:
        """Returns the deadline of a call that begins now.

        Raises:
            OptionError: The timeout is negative.
        """
        if timeout is not None and timeout < timedelta(0):
            raise OptionError("timeout", timeout, "a timedelta of zero or more, or None")
        return cls(began=time.monotonic(), timeout=timeout, uri=uri)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the deadline, as a thread can wait, at least 0; None without a timeout."""
        if self.timeout is None:
            return None
        remaining_s = self.began + self.timeout.total_seconds() - time.monotonic()
        return min(max(0.0, remaining_s), threading.TIMEOUT_MAX)


class QueryDeadline(Deadline):
    """The time at which the rows of a query must have arrived."""

    __slots__ = ()

    def read(self, search: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Runs a search, and yields its batches until the deadline.

        With a timeout, threads run the search. Lance cannot interrupt a read, so the last thread
        ends with the batch in progress.

        Raises:
            QueryTimeoutError: The rows did not arrive in time. Raised during the read.
        """
        return search() if self.timeout is None else self._read(search, self.timeout)

    def _read(
        self, search: Callable[[], Iterator[pa.RecordBatch]], timeout: timedelta
    ) -> Iterator[pa.RecordBatch]:
        batches = self._await(search, timeout)
        while (batch := self._await(functools.partial(next, batches, None), timeout)) is not None:
            yield batch

    def _await(self, act: Callable[[], _T], timeout: timedelta) -> _T:
        remaining_s = self.remaining_s
        call = in_thread(act) if remaining_s else None
        if call is None or call not in wait([call], remaining_s).done:
            raise QueryTimeoutError(
                f"Query timeout after {timeout.total_seconds():g} s. Table: {self.uri}. Create an index, select fewer "
                "rows, or give the query more time."
            )
        return call.result()
