"""The kinds of UDF: the arguments and results of a call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

import pyarrow as pa

Form = Literal["value", "list", "numpy", "blob", "python"]
"""The form of a parameter's values: unchanged, list columns as Python lists or NumPy arrays, a
blob as a readable file, maps as dicts and structs as instances of the annotated class."""

NEW_FORMS = ("python",)
"""Forms that UDFs with a digest of the first scheme lack."""


CHUNKS_OF_ROW = pa.struct(
    [
        pa.field("file", pa.string()),
        pa.field("part", pa.int32()),
        pa.field("first", pa.int64()),
        pa.field("rows", pa.int64()),
    ]
)
"""The location of a row's chunks: consecutive rows of a file, starting in a part of the file;
NULL for a failed row."""


class Kind(enum.Enum):
    """The arguments and results of a call of a UDF.

    Example:
        >>> from udf_runtime import Kind, udf
        >>> @udf
        ... def length(text: str) -> int:
        ...     return len(text)
        >>> length.kind is Kind.SCALAR
        True
    """

    SCALAR = "scalar"
    ARROW = "arrow"
    PANDAS = "pandas"
    RECORD_BATCH = "record_batch"
    ARROW_ITER = "arrow_iter"
    PANDAS_ITER = "pandas_iter"
    RECORD_BATCH_ITER = "record_batch_iter"
    CHUNKS = "chunks"
    TABLE = "table"

    @property
    def iterates(self) -> bool:
        """Whether a call takes an iterator over batches and returns an iterator over results."""
        return self in (Kind.ARROW_ITER, Kind.PANDAS_ITER, Kind.RECORD_BATCH_ITER)

    @property
    def vectorised(self) -> bool:
        """Whether a call computes many rows."""
        return self not in (Kind.SCALAR, Kind.CHUNKS)

    @property
    def takes_batches(self) -> bool:
        """Whether a call takes whole record batches, so the registration determines its inputs."""
        return self in (Kind.RECORD_BATCH, Kind.RECORD_BATCH_ITER, Kind.TABLE)

    @property
    def takes_series(self) -> bool:
        """Whether a call takes series of pandas, in which NaN stands for NULL."""
        return self in (Kind.PANDAS, Kind.PANDAS_ITER)

    @property
    def makes_rows(self) -> bool:
        """Whether a call returns rows of a new table instead of a value for each input row."""
        return self in (Kind.CHUNKS, Kind.TABLE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An input of a UDF.

    Attributes:
        name: Name of the function's parameter, and of its column unless `input_columns` is set.
        type: Arrow type of the annotation; None without an annotation or if the annotation does not
            describe a column.
        form: Form of the values.
        annotation: The annotation for the form "python", else None.
    """

    name: str
    type: pa.DataType | None = None
    form: Form = "value"
    annotation: object = None

    def __setstate__(self, state: Sequence[object]) -> None:
        # Stored UDFs of earlier releases have no annotation.
        for field, value in zip_longest(dataclasses.fields(self), state):
            object.__setattr__(self, field.name, value)
