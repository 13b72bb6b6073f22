"""Summaries of values: :class:`Displayable`, and warnings."""

from __future__ import annotations

import dataclasses
import html
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

_CHARS = 200
_PACKAGES = ("lance_spark", "udf_runtime")


class Displayable(ABC):
    """Base class of dataclasses with a single-line summary, and a table of fields in a notebook.

    Subclasses have `repr=False`, and define :attr:`text`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """Summary in a single line."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.text}>"

    def _repr_html_(self) -> str:
        """Returns the summary and the present fields as an HTML table."""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(_display_value(value))}</td></tr>"
            for name, value in _facts(self)
            if value not in (None, 0, "", (), {})
        )
        return f"<table><caption>{html.escape(self.text)}</caption><tbody>{rows}</tbody></table>"


def join_counts(*parts: str | tuple[int, str]) -> str:
    """Joins parts of a summary with commas, without empty texts and zero counts."""
    texts = [
        part if isinstance(part, str) else f"{part[0]:,} {part[1]}"
        for part in parts
        if part and part[0]
    ]
    return ", ".join(texts)


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warns at the caller's line: the nearest line outside of the packages."""
    level, frame = 1, sys._getframe()  # noqa: SLF001 - there is no public way before Python 3.12
    # The generated methods of a dataclass have no file. Their globals name the module of the class.
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _facts(value: object) -> list[tuple[str, object]]:
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]  # type: ignore[arg-type]


def _display_value(value: object) -> str:
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {item}" for key, item in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        text = ", ".join(map(str, value))
    else:
        text = str(value)
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…"
