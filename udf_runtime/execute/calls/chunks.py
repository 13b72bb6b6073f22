"""Chunkers: each row's chunks go into a file; the result holds their locations."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from udf_runtime.definition import CHUNKS_OF_ROW, UDF
from udf_runtime.errors import UdfDefinitionError, UdfOutputError, end_sentence
from udf_runtime.execute.call_context import CallContext, close_results, load_function
from udf_runtime.execute.calls.scalar import ScalarCalls
from udf_runtime.execute.conversion.outputs import Output
from udf_runtime.execute.conversion.values import CONVERSION_ERRORS, ValueConverter
from udf_runtime.execute.result import BatchResult, shortened
from udf_runtime.policies.matchers import message_of

if TYPE_CHECKING:
    from udf_runtime.checkpoint.chunks import ChunkFile

_FIRST_ROWS = 64
_MOST_ROWS = 8192
_PIECE_BYTES = 1 << 20
"""Bytes of chunks to convert together; the size of earlier chunks determines their number."""


class ChunkerCalls:
    """Calls a chunker once per row, under the same policy as a scalar UDF.

    Chunks of a failed call stay in the file, but no result refers to them. Memory: some chunks, and
    a part of the file. Thread-safe if the user's function is.
    """

    def __init__(self, context: CallContext) -> None:
        """Loads the chunker in this process.

        Raises:
            UdfDefinitionError: The context has no folder for chunks.
        """
        if context.chunks is None:
            raise UdfDefinitionError(
                f"The chunker {context.udf.name!r} has no folder for its chunks. Give chunks= to the runner."
            )
        self._context = context
        self._folder = context.chunks
        self._pieces = ChunkPieces(context.udf)
        self._output = Output(context.udf.name, CHUNKS_OF_ROW, is_columns=False, nan_is_null=False)
        fields: Any = context.udf.data_type
        self._schema = pa.schema(list(fields))

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns the locations of the chunks of a batch's rows.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive the error.
            UdfOutputError: The function yielded a misfit chunk, and the policy does not forgive the
                error.
            ChunksNotStoredError: The store failed.
        """
        file = self._folder.open_file(self._schema)
        calls = ScalarCalls(
            self._context, function=functools.partial(self._call, file), output=self._output
        )
        result = calls.run(batch)
        file.flush()
        return result

    def _call(self, file: ChunkFile, *arguments: object) -> tuple[str, int, int, int]:
        """Writes the chunks of a row into a file, and returns their location."""
        place = file.name, file.part, file.rows
        rows = 0
        for piece in self._pieces.of_row(*arguments):
            file.write(piece)
            rows += piece.num_rows
        return (*place, rows)


class ChunkPieces:
    """Calls a chunker, and yields a row's chunks as record batches. Thread-safe."""

    def __init__(self, udf: UDF) -> None:
        """Loads the chunker in this process."""
        self._udf = udf
        self._function = load_function(udf)
        self._converter = ValueConverter(udf.data_type, nan_is_null=False, complete=True)

    def of_row(self, *arguments: object) -> Iterator[pa.RecordBatch]:
        """Yields the chunks of a row, some at a time.

        Raises:
            UdfOutputError: A chunk does not fit.
            BaseException: Any error of the function.
        """
        chunks = self._function(*arguments)
        if chunks is None:
            return
        if not isinstance(chunks, Iterable) or isinstance(chunks, (str, bytes, dict)):
            raise UdfOutputError(
                f"The chunker {self._udf.name!r} returned {type(chunks).__name__} instead of an iterator of chunks. "
                "Yield each chunk.",
                udf=self._udf.name,
            )
        rows, most = 0, _FIRST_ROWS
        pending: list[object] = []
        try:
            for chunk in chunks:
                pending.append(chunk)
                if len(pending) >= most:
                    piece = self._make_piece(pending, rows)
                    yield piece
                    rows += len(pending)
                    most = min(
                        _MOST_ROWS, max(1, _PIECE_BYTES * len(pending) // max(1, piece.nbytes))
                    )
                    pending = []
            if pending:
                yield self._make_piece(pending, rows)
        finally:
            close_results(chunks)

    def _make_piece(self, chunks: list[object], before: int) -> pa.RecordBatch:
        if None in chunks:
            raise self._make_error(before + chunks.index(None), "it is None")
        try:
            array: Any = self._converter.array(chunks)
        except CONVERSION_ERRORS as failed:
            for number, error in self._converter.misfits(chunks):
                raise self._make_error(before + number, message_of(error)) from error
            raise self._make_error(before, message_of(failed)) from failed
        return pa.RecordBatch.from_struct_array(array)

    def _make_error(self, number: int, reason: str) -> UdfOutputError:
        return UdfOutputError(
            f"The chunker {self._udf.name!r} yielded a chunk that is no {self._udf.data_type}: "
            f"{end_sentence(shortened(reason))} Place: chunk {number} of a row. Yield NamedTuples, dataclasses or "
            "mappings with these columns, or declare another output_schema.",
            udf=self._udf.name,
        )
