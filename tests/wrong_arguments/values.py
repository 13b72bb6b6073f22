"""Values that are wrong for nearly all parameters, and the judgement of a call with such a value."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lance_spark.errors import LanceSparkError, OptionError
from udf_runtime.errors import UdfDefinitionError, UdfRuntimeError

_T = TypeVar("_T")


class Hostile:
    """An object whose every method fails."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError("a method of a hostile object was called")

    __repr__ = __str__ = __bool__ = __len__ = __iter__ = __eq__ = __hash__ = __index__ = (
        __float__
    ) = _fail  # type: ignore[assignment]


TEXTS: list[str] = [
    "", " ", "\n", "id", "no such name", "*", "a.b", "_rowid", "..", "../..", "x/../../y", ".", "~", "a\\b", "-1", "0", "9" * 20,
    "9" * 5000, "1e300", "NaN", "true", "null", "a\0b", "\ud800", "\u202eabc", "a\u200bb", "é", "x" * 10_000, "`", "'", '"',
    "'; DROP TABLE t; --", "' OR '1'='1", "${HOME}", "%s{0}", "[" * 2000, "{" * 2000, '{"a": ', "[1, 2]", "(" * 2000, "main", "main:1",
    "db://x", "nosuchscheme://x/y", "s3:/one/slash",
]  # fmt: skip

OTHER_VALUES: list[Callable[[], object]] = [
    lambda: None, lambda: True, lambda: False, lambda: -1, lambda: 0, lambda: 1, lambda: 2**31, lambda: 2**63 - 1, lambda: 2**63,
    lambda: -(2**63) - 1, lambda: 2**64, lambda: 10**400, lambda: 0.5, lambda: -0.5, lambda: 1e300, lambda: float("nan"),
    lambda: float("inf"), lambda: 1j, lambda: Decimal("NaN"), lambda: b"id", lambda: bytearray(b"x"), lambda: np.int64(-1),
    lambda: np.float32("nan"), lambda: np.bool_(True), lambda: np.zeros((2, 2)), lambda: np.datetime64("NaT"), list, lambda: [None],
    lambda: ["id", "id"], lambda: ["\ud800"], lambda: [[]], lambda: [1], lambda: (), lambda: ("id", 1), dict, lambda: {1: 2},
    lambda: {"id": None}, lambda: {"id": {"id": []}}, lambda: {"\ud800": "\ud800"}, lambda: {"": ""}, lambda: {("a",): [1]}, lambda: set("a"),
    lambda: iter(()), lambda: iter([1]), lambda: range(3), object, Hostile, lambda: int, lambda: len, lambda: Path("x"),
    lambda: datetime.now(UTC), lambda: timedelta(0), lambda: timedelta(days=-1), lambda: timedelta.max,
    lambda: timedelta.min, lambda: pa.table({"x": [1]}), lambda: pa.schema([]), pa.null, lambda: pa.array([1]), lambda: ..., lambda: NotImplemented,
    lambda: ValueError("x"), lambda: [{"id": 2**70}], lambda: [{"id": 1}, 2], lambda: {"id": [1], "x": [1, 2]},
]  # fmt: skip
"""Functions instead of values, because a call may change its argument."""


def wrong_values() -> list[Callable[[], object]]:
    """Returns a maker for each value, texts first."""
    return [*((lambda text=text: text) for text in TEXTS), *OTHER_VALUES]


def show(value: object) -> str:
    """Returns a value for a report, regardless of its type."""
    if isinstance(value, Hostile):
        return "Hostile()"
    return repr(value)[:60].encode("ascii", "backslashreplace").decode()


def sample(items: Sequence[_T], count: int, *names: str) -> list[_T]:
    """Returns some items, equal in every run."""
    chosen = random.Random(zlib.crc32(" ".join(names).encode()))
    return chosen.sample(list(items), min(count, len(items)))


@dataclass(frozen=True)
class CallOutcome:
    """The outcome of a call.

    Attributes:
        kind: `works`, `refuses` or `fault`.
        text: A description of the fault.
        error: The error of the call.
    """

    kind: str
    text: str = ""
    error: BaseException | None = None


def judge(
    name: str, value: object, call: Callable[[], object], *, accepted_names: Collection[str] = ()
) -> CallOutcome:
    """Makes a call with a wrong argument, which must work, or raise a typed error with the argument's name or a name of
    `accepted_names`.
    """
    try:
        call()
    except (LanceSparkError, UdfRuntimeError) as error:
        if isinstance(error, (OptionError, UdfDefinitionError)) and not any(
            accepted.strip("_") in str(error) for accepted in (name, *accepted_names)
        ):
            return CallOutcome(
                "fault",
                f"{name}={show(value)}: the message names no argument: {show(str(error))}",
                error,
            )
        return CallOutcome("refuses", error=error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return CallOutcome(
            "fault", f"{name}={show(value)}: {type(error).__name__}: {show(str(error))}", error
        )
    return CallOutcome("works")
