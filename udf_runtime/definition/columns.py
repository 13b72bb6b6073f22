"""`Columns[T]`: the return annotation of a UDF that fills several sibling columns in one call."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Columns(Generic[T]):
    """Says that a UDF fills one column per field of T, a NamedTuple or a dataclass.

    Only ever an annotation. A scalar UDF returns a T; a vectorised one a `pa.StructArray` or a
    `pa.RecordBatch` with T's fields.

    Examples:
        ```python
        class Size(NamedTuple):
            height: int
            width: int


        @udf
        def size(image: bytes) -> Columns[Size]: ...
        ```
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("Columns is a return annotation - return a T, a pa.StructArray or a pa.RecordBatch")
