"""`Columns[T]`: the return annotation of a UDF with several sibling columns per call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import pyarrow as pa

T = TypeVar("T")

if TYPE_CHECKING:
    # To type checkers, the annotation is the union of the values that a function may return.
    Columns: TypeAlias = T | pa.StructArray | pa.RecordBatch
else:

    class Columns(Generic[T]):
        """Return annotation of a UDF with a column per field of T, a NamedTuple or a dataclass.

        The class is an annotation only. A scalar UDF returns a T. A vectorised UDF returns a
        `pa.StructArray` or a `pa.RecordBatch` with T's fields.

        Example:
            >>> from typing import NamedTuple
            >>> from udf_runtime import Columns, udf
            >>> class Size(NamedTuple):
            ...     height: int
            ...     width: int
            >>> @udf
            ... def size(image: bytes) -> Columns[Size]:
            ...     return Size(image[0], image[1])
            >>> size.is_columns, size(bytes([3, 4]))
            (True, Size(height=3, width=4))
        """

        __slots__ = ()

        def __init__(self) -> None:
            raise TypeError(
                "Columns is a return annotation. Return a T, a pa.StructArray or a pa.RecordBatch."
            )
