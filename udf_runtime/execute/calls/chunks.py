"""Chunkers: each row's chunks go into a file as they come; the result says where they are."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from udf_runtime.definition import CHUNKS_OF_ROW, UDF
from udf_runtime.errors import UdfDefinitionError, UdfOutputError
from udf_runtime.execute.calls.scalar import ScalarCalls
from udf_runtime.execute.outputs import Output
from udf_runtime.execute.result import BatchResult, shortened
from udf_runtime.execute.setting import Setting, load_function
from udf_runtime.execute.values import CONVERSION_ERRORS, ValueConverter
from udf_runtime.policies.matchers import message_of

if TYPE_CHECKING:
    from udf_runtime.checkpoint.chunks import ChunkFile

_FIRST_ROWS = 64
_MOST_ROWS = 8192
_PIECE_BYTES = 1 << 20
"""Chunks that are converted together: as many as had these bytes before."""


class ChunkCalls:
    """Calls a chunker once per row, under the same policy as a scalar UDF.

    Chunks of a call that fails stay in the file, where no result speaks of them. Memory: some
    chunks, and a part of the file. Safe for several threads if the user's function is.
    """

    def __init__(self, setting: Setting) -> None:
        """Loads the chunker in this process.

        Raises:
            UdfDefinitionError: There is no folder for chunks.
        """
        if setting.chunks is None:
            raise UdfDefinitionError(
                f"chunker {setting.udf.name!r} has no place for its chunks - where rows are given to it - give chunks= "
                "to the runner"
            )
        self._setting = setting
        self._folder = setting.chunks
        self._pieces = ChunkPieces(setting.udf)
        self._output = Output(setting.udf.name, CHUNKS_OF_ROW, is_columns=False, nan_is_null=False)
        fields: Any = setting.udf.data_type
        self._schema = pa.schema(list(fields))

    def run(self, batch: pa.RecordBatch) -> BatchResult:
        """Returns where the chunks of a batch's rows are.

        Raises:
            UdfFailedError: The function raised, and the policy does not forgive it.
            UdfOutputError: It yielded a chunk that does not fit, and the policy does not forgive
                it.
            ChunksNotStoredError: The store refused.
        """
        file = self._folder.open_file(self._schema)
        calls = ScalarCalls(self._setting, function=functools.partial(self._call, file), output=self._output)
        result = calls.run(batch)
        file.flush()
        return result

    def close(self) -> None:
        """Does nothing: there is nothing to end."""

    def _call(self, file: ChunkFile, *arguments: object) -> tuple[str, int, int, int]:
        """Puts the chunks of one row into a file, and returns where they are."""
        place = file.name, file.part, file.rows
        rows = 0
        for piece in self._pieces.of_row(*arguments):
            file.write(piece)
            rows += piece.num_rows
        return (*place, rows)


class ChunkPieces:
    """Calls a chunker, and yields a row's chunks as record batches. Safe for several threads."""

    def __init__(self, udf: UDF) -> None:
        """Loads the chunker in this process."""
        self._udf = udf
        self._function = load_function(udf)
        self._converter = ValueConverter(udf.data_type, nan_is_null=False, complete=True)

    def of_row(self, *arguments: object) -> Iterator[pa.RecordBatch]:
        """Yields the chunks of one row, some at a time.

        Raises:
            UdfOutputError: One does not fit.
            BaseException: What the function raised.
        """
        made = self._function(*arguments)
        if made is None:
            return
        if not isinstance(made, Iterable) or isinstance(made, (str, bytes, dict)):
            raise UdfOutputError(
                f"chunker {self._udf.name!r} returned {type(made).__name__} instead of an iterator of chunks - for a "
                "row - yield each chunk",
                udf=self._udf.name,
            )
        rows, most = 0, _FIRST_ROWS
        held: list[object] = []
        try:
            for chunk in made:
                held.append(chunk)
                if len(held) >= most:
                    piece = self._piece(held, rows)
                    yield piece
                    rows += len(held)
                    most = min(_MOST_ROWS, max(1, _PIECE_BYTES * len(held) // max(1, piece.nbytes)))
                    held = []
            if held:
                yield self._piece(held, rows)
        finally:
            close = getattr(made, "close", None)
            if callable(close):
                close()

    def _piece(self, chunks: list[object], before: int) -> pa.RecordBatch:
        if None in chunks:
            raise self._misfit(before + chunks.index(None), "it is None")
        try:
            array: Any = self._converter.array(chunks)
        except CONVERSION_ERRORS as failed:
            for number, error in self._converter.misfits(chunks):
                raise self._misfit(before + number, message_of(error)) from error
            raise self._misfit(before, message_of(failed)) from failed
        return pa.RecordBatch.from_struct_array(array)

    def _misfit(self, number: int, reason: str) -> UdfOutputError:
        return UdfOutputError(
            f"chunker {self._udf.name!r} yielded a chunk that is no {self._udf.data_type}: "
            f"{shortened(reason)} - chunk {number} of a row - yield NamedTuples, dataclasses or mappings with these "
            "columns, or declare another output_schema",
            udf=self._udf.name,
        )
