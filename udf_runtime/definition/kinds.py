"""The kinds of UDF, distinguished by what a function gets and returns in one call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

import pyarrow as pa

Form = Literal["value", "list", "numpy", "blob", "python"]
"""How the values of a parameter arrive: as they are, a list column as Python lists or as NumPy
arrays, a blob as a readable file, maps as dicts and structs as instances of the annotated class."""

NEW_FORMS = ("python",)
"""Forms that UDFs with a digest of the first scheme do not have."""


CHUNKS_OF_ROW = pa.struct(
    [
        pa.field("file", pa.string()),
        pa.field("part", pa.int32()),
        pa.field("first", pa.int64()),
        pa.field("rows", pa.int64()),
    ]
)
"""Where the chunks of a row are: in parts of a file, from a row of one of these on; NULL for a row
that failed."""


class Kind(enum.Enum):
    """What a UDF gets and returns in one call."""

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
        """Whether it gets an iterator over batches and returns one over results."""
        return self in (Kind.ARROW_ITER, Kind.PANDAS_ITER, Kind.RECORD_BATCH_ITER)

    @property
    def vectorised(self) -> bool:
        """Whether it computes many rows in one call."""
        return self not in (Kind.SCALAR, Kind.CHUNKS)

    @property
    def takes_batches(self) -> bool:
        """Whether it gets whole record batches, so that registration decides about its inputs."""
        return self in (Kind.RECORD_BATCH, Kind.RECORD_BATCH_ITER, Kind.TABLE)

    @property
    def makes_rows(self) -> bool:
        """Whether it returns rows of a table of its own, and no value for each row that it gets."""
        return self in (Kind.CHUNKS, Kind.TABLE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One input of a UDF.

    Attributes:
        name: Name of the function's parameter; the column that it reads unless `input_columns` says
            otherwise.
        type: Arrow type of its annotation, None where there is none or it says nothing about the
            column.
        form: How the values arrive.
        annotation: The annotation that the form "python" honours, else None.
    """

    name: str
    type: pa.DataType | None = None
    form: Form = "value"
    annotation: object = None

    def __setstate__(self, state: Sequence[object]) -> None:
        # Stored UDFs of earlier releases have no annotation.
        for field, value in zip_longest(dataclasses.fields(self), state):
            object.__setattr__(self, field.name, value)
