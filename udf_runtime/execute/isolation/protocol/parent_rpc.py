"""Requests from the process of a UDF to its runner: chunks, rows of a table, calls of a service."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from udf_runtime.execute.isolation.protocol.frames import Payload, to_ipc

if TYPE_CHECKING:
    from udf_runtime.checkpoint.chunks import ChunkFolder
    from udf_runtime.execute.limits import Limiter
    from udf_runtime.execute.tables import TableSource


class ParentRpc:
    """Answers the requests of a process; errors of a store or a table are answers, too.

    Attributes:
        table_error: The error of a table read, for the caller; the function is not to
            blame.
    """

    def __init__(
        self,
        chunks: ChunkFolder | None = None,
        source: TableSource | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self.table_error: Exception | None = None
        self._limiter = limiter
        self._chunks = chunks
        self._source = source
        self._open: dict[int, Iterator[pa.RecordBatch]] = {}
        self._numbers = itertools.count()

    def answer(self, operation: str, arguments: list[object], data: pa.Buffer) -> Payload:
        """Returns the answer to a request.

        Raises:
            Exception: Any error of a store or a table.
        """
        if operation == "put" and self._chunks is not None:
            (path,) = arguments
            self._chunks.objects.put(str(path), data.to_pybytes())
            return b""
        if operation == "credit" and self._limiter is not None:
            tokens, waiting = (int(str(each)) for each in arguments)
            return repr(self._limiter.acquire(tokens, waiting)).encode()
        if self._source is None:
            raise OSError(f"there is nothing to answer {operation!r} with")
        try:
            return self._answer_table(
                self._source, operation, *(int(str(each)) for each in arguments)
            )
        except Exception as error:
            self.table_error = error
            raise

    def _answer_table(self, source: TableSource, operation: str, number: int = 0) -> Payload:
        if operation == "schema":
            return source.schema.serialize()
        if operation == "count":
            return str(source.count_rows()).encode()
        if operation == "open":
            opened = next(self._numbers)
            self._open[opened] = source.to_batches(batch_size=number)
            return str(opened).encode()
        if operation == "close":
            self._open.pop(number, None)
            return b""
        batch = next(self._open[number], None)
        return b"" if batch is None else to_ipc(batch)
