"""Exact casts of columns that are not nested.

A step is a function from array to array, or None if the array can stay unchanged. Each step either
keeps every value or raises :class:`BadValue`. The only exception is the width of floating-point
numbers. A value is rounded to the nearest value of a narrower float column, because Spark has no
type for such columns, and vectors are often computed with wider floats. A finite value that would
become infinite raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.types.fields import (
    BFLOAT16,
    JSON,
    Array,
    Kind,
    extension_name,
    is_binary,
    is_text,
    storage_type,
)
from lance_spark.types.layout import assemble, buffer_of, nulls, offsets_of, same_layout, validity
from lance_spark.types.mapping import CHAR, declared_text

Step: TypeAlias = Callable[[Array], Array]

MOST_OFFSET = 2**31 - 1
"""Maximum bytes of text, or elements of lists, of an array in Spark's Arrow types."""

_NARROWER = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""Types with 64-bit offsets, and their counterparts with 32-bit offsets."""

_DISPLAY_LENGTH = 60

_LEAST_FIRST_BYTE = 0xC0 - 0x100
"""As a signed number. The bytes 0x80 to 0xBF continue a character of UTF-8."""


class BadValue(Exception):  # noqa: N818 - never leaves this package
    """A value does not fit. Becomes a ValueConversionError as soon as column and row are known.

    Attributes:
        index: Position of the value in the converted array.
        reason: Description of the problem.
        path: Dotted path of the column; None until a node with a path sees the error.
    """

    def __init__(self, index: int, reason: str, path: str | None = None) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason
        self.path = path


class TooLarge(Exception):  # noqa: N818 - never leaves this package
    """A batch has more text or elements than Spark's Arrow types can address."""


class Inconvertible(Exception):  # noqa: N818 - never leaves this package
    """No conversion between two types exists. The text names an alternative."""


def plan_leaf(source: pa.Field[Any], target: pa.Field[Any]) -> Step | None:
    """Plans the conversion of a column that is not nested on either side.

    Raises:
        Inconvertible: No exact conversion exists.
    """
    have, want = storage_type(source), storage_type(target)
    if pa.types.is_null(have):
        return None if pa.types.is_null(want) else lambda array: nulls(len(array), want)
    if pa.types.is_dictionary(have):
        return chain(_decode, plan_leaf(pa.field("", have.value_type), target))
    if pa.types.is_dictionary(want):
        return chain(plan_leaf(source, pa.field("", want.value_type)), _encode(want))
    if BFLOAT16 in (extension_name(source), extension_name(target)):
        return _plan_bfloat16(source, target)
    if extension_name(target) == JSON and extension_name(source) != JSON:
        return chain(plan_leaf(source, pa.field("", want)), _check_json)
    return None if same_layout(have, want) else _plan_cast(have, want)


def _plan_cast(have: Kind, want: Kind) -> Step:
    step = _plan_number(have, want) or _plan_bytes(have, want) or _plan_moment(have, want)
    if step is None:
        raise Inconvertible(f"{have} is not converted to {want}; cast it first")
    return step


def check_text(have: Kind) -> Step | None:
    """Returns a check that text is UTF-8, as Arrow promises.

    Spark's strings may hold any bytes, for example `CAST(X'C1' AS STRING)`. Lance writes such
    bytes, and then cannot read any row of their page (measured, pylance 14). Bytes hidden by a NULL
    are dropped.
    """
    kind = have.value_type if pa.types.is_dictionary(have) else have
    if not is_text(kind):
        return None

    def step(array: Array) -> Array:
        texts = _decode(array) if pa.types.is_dictionary(have) else array
        texts = texts.cast(pa.large_string()) if pa.types.is_string_view(kind) else texts
        if _is_utf8(texts):
            return array
        for index, text in enumerate(texts.cast(pa.large_binary()).to_pylist()):
            try:
                str(text or b"", "utf-8")
            except UnicodeDecodeError as error:
                raise BadValue(
                    index, f"text of the bytes {shortened(repr(text))} is not UTF-8"
                ) from error
        return array.take(pa.array(np.arange(len(array))))

    return step


def _is_utf8(array: Array) -> bool:
    """Tells whether all bytes of text are UTF-8, and no value begins inside a character.

    ASCII text takes 2 ns per value of 60 bytes. Arrow's validation of each value takes 7 ns.
    """
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return True
    data = array.buffers()[2].slice(first, last - first)
    signed = np.frombuffer(data, np.int8)
    if signed.min() >= 0:
        return True
    try:
        assemble(
            pa.large_string(), 1, [None, buffer_of(np.array([0, last - first])), data]
        ).validate(full=True)
    except pa.ArrowInvalid:
        return False
    starts = offsets[: np.searchsorted(offsets, last)] - first
    return not (signed[starts] < _LEAST_FIRST_BYTE).any()


def enforce_length(target: pa.Field[Any]) -> Step | None:
    """Returns a length check for `CHAR(n)` and `VARCHAR(n)` columns, with padding for `CHAR(n)`."""
    match = CHAR.fullmatch(declared_text(target)) if pa.types.is_string(target.type) else None
    if match is None:
        return None
    kind, limit, is_padded = match[0], int(match[1]), match[0].startswith("char")

    def step(array: Array) -> Array:
        lengths: Any = pc.utf8_length(array)
        index = _first_true(pc.greater(lengths, pa.scalar(limit)))
        if index is not None:
            raise BadValue(
                index, f"value {display_value(array[index])} has more characters than {kind} holds"
            )
        return pc.utf8_rpad(array, limit) if is_padded else array

    return step


def chain(first: Step | None, second: Step | None) -> Step | None:
    """Combines two steps."""
    if first is None or second is None:
        return first or second
    return lambda array: second(first(array))


def _plan_number(have: Kind, want: Kind) -> Step | None:
    if pa.types.is_integer(have):
        return _plan_integer(want)
    if pa.types.is_decimal(have) and (pa.types.is_decimal(want) or pa.types.is_integer(want)):
        return _cast(want)
    if pa.types.is_floating(have):
        return _plan_float(have, want)
    return None


def _plan_integer(want: Kind) -> Step | None:
    if pa.types.is_decimal(want):
        # Arrow refuses a direct cast to few digits by type. A cast through the 20 digits of a
        # 64-bit integer is checked by value.
        return chain(_cast(pa.decimal256(20, 0)), _cast(want))
    if pa.types.is_integer(want) or pa.types.is_float32(want) or pa.types.is_float64(want):
        return _cast(want)
    return None


def _plan_float(have: Kind, want: Kind) -> Step | None:
    if pa.types.is_floating(want):
        return _cast_float(want) if want.bit_width < have.bit_width else _cast(want)
    if pa.types.is_integer(want):
        widened = _cast(pa.float32()) if pa.types.is_float16(have) else None
        return chain(widened, _cast(want))
    return None


def _plan_bytes(have: Kind, want: Kind) -> Step | None:
    """Plans a cast from text to text, or from bytes to bytes."""
    is_fixed = pa.types.is_fixed_size_binary
    if is_fixed(have):
        return _plan_fixed_bytes(have, want)
    if not (
        (is_text(have) and is_text(want))
        or (is_binary(have) and (is_binary(want) or is_fixed(want)))
    ):
        return None
    return _narrow(want) if _NARROWER.get(have) == want else _cast(want)


def _plan_fixed_bytes(have: Kind, want: Kind) -> Step | None:
    if pa.types.is_binary(want):
        return chain(_check_total(have.byte_width), _cast(want))
    return _cast(want) if is_binary(want) else None


def _plan_moment(have: Kind, want: Kind) -> Step | None:
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want):
        if (have.tz is None) != (want.tz is None):
            return None
        return _cast(pa.timestamp(want.unit, have.tz))
    for family in (pa.types.is_date, pa.types.is_time, pa.types.is_duration):
        if family(have) and family(want):
            return _cast(want)
    return None


def _cast(want: Kind) -> Step:
    """Casts with Arrow's checks of every value: ranges, digits, whole numbers, units of time."""

    def step(array: Array) -> Array:
        try:
            return array.cast(want)
        except pa.ArrowInvalid as error:
            index = _first_bad(array, want)
            raise BadValue(
                index, f"value {display_value(array[index])} does not fit {want}"
            ) from error

    return step


def _cast_float(want: Kind) -> Step:
    """Rounds to the nearest number. Raises an error for finite numbers that become infinite."""
    # Imported here, because tasks that only read do not import UDFs.
    from udf_runtime.execute.conversion.casts import narrow_floats

    def step(array: Array) -> Array:
        floats, index = narrow_floats(array, want)
        if index is not None:
            raise BadValue(index, f"value {display_value(array[index])} is too large for {want}")
        return floats

    return step


def _first_bad(array: Array, want: Kind) -> int:
    """Returns the position of the first invalid value by bisection: Arrow reports no position."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(want)
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


def display_value(value: Any) -> str:  # noqa: ANN401 - any scalar
    """Formats a value for a message, even if Python cannot represent it."""
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError):
        text = f"{getattr(value, 'value', '?')} ({value.type})"
    return shortened(text)


def displayed_values(column: Any) -> list[object]:  # noqa: ANN401 - an array or a chunked array
    """Returns Python values of a column, with text for values outside of Python's types."""
    try:
        values: list[object] = column.to_pylist()
    except (ValueError, OverflowError):
        return [_displayed(value) for value in column]
    return values


def _displayed(value: Any) -> object:  # noqa: ANN401 - any scalar
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return display_value(value)


def shortened(text: str) -> str:
    """Returns the first characters of a text, for a message."""
    return text if len(text) <= _DISPLAY_LENGTH else f"{text[:_DISPLAY_LENGTH]}..."


def _first_true(mask: Array) -> int | None:
    index: int = pc.index(mask, True).as_py()
    return None if index < 0 else index


# The smallest magnitude that rounds to infinity: the largest finite value plus half a step.
_BFLOAT16_FINITE_BELOW = float(2**128 - 2**119)


def _check_finite(limit: float, name: str) -> Step:
    def step(array: Array) -> Array:
        size = pc.abs(array)
        index = _first_true(
            pc.and_(pc.greater_equal(size, pa.scalar(limit, array.type)), pc.is_finite(array))
        )
        if index is not None:
            raise BadValue(index, f"value {display_value(array[index])} is too large for {name}")
        return array

    return step


def _plan_bfloat16(source: pa.Field[Any], target: pa.Field[Any]) -> Step | None:
    single = pa.field("", pa.float32())
    if extension_name(source) == BFLOAT16:
        return (
            None
            if extension_name(target) == BFLOAT16
            else chain(_from_bfloat16, plan_leaf(single, target))
        )
    if not pa.types.is_floating(storage_type(source)):
        raise Inconvertible("cast it to float in Spark first")
    return chain(
        chain(plan_leaf(source, single), _check_finite(_BFLOAT16_FINITE_BELOW, "bfloat16")),
        _to_bfloat16,
    )


def _values(array: Array, dtype: type) -> np.ndarray[Any, Any]:
    """Returns the values of a fixed-width array, with arbitrary values for NULLs."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]


def _from_bfloat16(array: Array) -> Array:
    bits = _values(array, np.uint16).astype(np.uint32) << 16
    return assemble(pa.float32(), len(array), [validity(array), buffer_of(bits)])


def _to_bfloat16(array: Array) -> Array:
    """Rounds to the nearest, ties to even. NaN stays NaN."""
    bits = _values(array, np.uint32)
    halved = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = np.where(is_nan, (bits >> 16).astype(np.uint16) | np.uint16(0x40), halved).astype(
        np.uint16
    )
    return assemble(pa.binary(2), len(array), [validity(array), buffer_of(rounded)])


def whole_microseconds(array: Array) -> Array:
    """Raises an error for times of day that are not whole microseconds."""
    _cast(pa.time64("us"))(array)
    return array


def _narrow(want: Kind) -> Step:
    def step(array: Array) -> Array:
        offsets = offsets_of(array)
        first, last = int(offsets[0]), int(offsets[-1])
        if last - first > MOST_OFFSET:
            raise TooLarge
        data = array.buffers()[2]
        data = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
        return assemble(
            want, len(array), [validity(array), buffer_of((offsets - first).astype(np.int32)), data]
        )

    return step


def _check_total(width: int) -> Step:
    def step(array: Array) -> Array:
        if len(array) * width > MOST_OFFSET:
            raise TooLarge
        return array

    return step


def _decode(array: Array) -> Array:
    values = array.dictionary
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        # Arrow's kernels do not take from views.
        plain = pa.large_string() if pa.types.is_string_view(values.type) else pa.large_binary()
        array = pa.DictionaryArray.from_arrays(array.indices, values.cast(plain))
    try:
        return array.dictionary_decode()
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise TooLarge from error


def _encode(want: Kind) -> Step:
    most = 2 ** (want.index_type.bit_width - pa.types.is_signed_integer(want.index_type))

    def step(array: Array) -> Array:
        encoded = array.dictionary_encode()
        if len(encoded.dictionary) > most:
            index = _first_true(pc.equal(encoded.indices, most)) or 0
            raise BadValue(
                index,
                f"a batch has more than the {most} different values that {want} can tell apart",
            )
        indices = encoded.indices.cast(want.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=want.ordered)

    return step


def _check_json(array: Array) -> Array:
    """Raises an error for text that Lance would reject without a position, or would change.

    Lance stores JSON in a binary form. With pylance 14, empty text and a number beyond the range of
    a double came back as `null`, and an integer of more than 64 bits as a rounded float. Python
    checks each value, only in JSON columns.
    """
    for index, text in enumerate(array.to_pylist()):
        if text is None:
            continue
        try:
            json.loads(
                text,
                parse_int=_json_int,
                parse_float=_json_float,
                parse_constant=_no_constant,
                object_pairs_hook=_no_doubles,
            )
        except (ValueError, RecursionError) as error:
            raise BadValue(index, f"a text is not JSON that Lance can keep: {error}") from error
    return array


def _json_int(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"the integer {text[:_DISPLAY_LENGTH]} has more than 64 bits")
    return number


def _json_float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:_DISPLAY_LENGTH]} is larger than a double")
    return number


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _no_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values_by_key = dict(pairs)
    if len(values_by_key) != len(pairs):
        raise ValueError("an object has a key twice")
    return values_by_key
