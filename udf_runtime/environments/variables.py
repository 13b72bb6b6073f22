"""Values of environment variables: in memory and in transit, but never stored.

A manifest only has their names. At the start of a job, a value comes from the builder's arguments
in the same process, or from the environment of the process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from udf_runtime.arguments import list_items, show_value
from udf_runtime.errors import UdfDefinitionError

if TYPE_CHECKING:
    from udf_runtime.environments.manifest import Manifest

Source: TypeAlias = "str | Callable[[], str]"

HIDDEN = "***"
FEWEST_HIDDEN_CHARS = 4
"""Shorter values are not redacted, because they carry no secret, and occur everywhere."""

FEWEST_HIDDEN_LINE_CHARS = 8
"""The same minimum for a line of a multi-line value, for example a PEM key or a JSON document."""

_LINE_END = re.compile(r"[\r\n]|\\[rn]")  # also in the form of a JSON document, within a line

_RESERVED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_remembered: dict[
    str, dict[str, Source]
] = {}  # by the manifest's checksum, for manifests built in this process


class Variables:
    """Names and values for the process of a UDF. Immutable, picklable.

    The pickled form obscures the values, so no log or spilled file shows them by chance. This is no
    encryption: use Spark's encryption of connections and files.
    """

    __slots__ = ("_hidden", "_values")

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})
        hidden = {
            form
            for value in self._values.values()
            for text in _split_secrets(value)
            for form in _list_forms(text)
        }
        self._hidden = sorted(hidden, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Variables({', '.join(self._values)})"

    def __bool__(self) -> bool:
        return bool(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variables) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __reduce__(self) -> tuple[object, ...]:
        return (_unseal, tuple((_seal(name), _seal(value)) for name, value in self._values.items()))

    def in_clear(self) -> dict[str, str]:
        """Returns the values by name."""
        return dict(self._values)

    @property
    def hidden_texts(self) -> tuple[str, ...]:
        """The texts that :meth:`redact` replaces, in order."""
        return tuple(self._hidden)

    def redact(self, text: str) -> str:
        """Returns a text with `***` in place of each value and its lines, escaped or not."""
        for hidden in self._hidden:
            text = text.replace(hidden, HIDDEN)
        return text

    def shows_in(self, data: bytes) -> bool:
        """Tells whether bytes hold clear text to be replaced by :meth:`redact`."""
        return any(hidden.encode() in data for hidden in self._hidden)


def check_sources(variables: Iterable[str] | Mapping[str, Source]) -> dict[str, Source | None]:
    """Returns sources by name; None is the environment of the process that starts a job.

    Raises:
        UdfDefinitionError: A name is invalid or reserved, or a source is neither text nor callable.
    """
    if isinstance(variables, Mapping):
        pairs = list(variables.items())
    else:
        names = [variables] if isinstance(variables, str) else list_items(variables) or [None]
        pairs = [(name, None) for name in names]
    for name, source in pairs:
        _check_source(name, source)
    return dict(pairs)


def _check_source(name: object, source: object) -> None:
    if (
        not isinstance(name, str)
        or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)
        or name in _RESERVED
    ):
        raise UdfDefinitionError(
            f"The name {show_value(name)} cannot be an environment variable of a UDF. Give names of letters, "
            f"digits and underscores, but not {', '.join(_RESERVED)}."
        )
    if source is not None and not isinstance(source, str) and not callable(source):
        raise UdfDefinitionError(
            f"The value of {name} in env_vars is {type(source).__name__}. Give a str, or a function that returns a "
            "str at the start of a job."
        )


def remember(manifest: Manifest, sources: Mapping[str, Source | None]) -> None:
    """Keeps the sources of a manifest for jobs started by this process."""
    explicit_sources = {name: source for name, source in sources.items() if source is not None}
    if explicit_sources:
        _remembered[manifest.checksum] = explicit_sources


def resolve(manifest: Manifest) -> Variables:
    """Returns the values of a manifest's variables. Runs at the start of a job.

    Raises:
        UdfDefinitionError: A variable has no value, or its function raises.
    """
    explicit_sources, values = _remembered.get(manifest.checksum, {}), {}
    for name in manifest.env_vars:
        source = explicit_sources.get(name, os.environ.get(name))
        if callable(source):
            try:
                source = source()
            except Exception as error:
                raise UdfDefinitionError(
                    f"The function for the environment variable {name} raised {type(error).__name__}. Manifest: "
                    f"{manifest.name!r}. Correct the function in env_vars."
                ) from error
        if not isinstance(source, str):
            raise UdfDefinitionError(
                f"The environment variable {name} has no value. Manifest: {manifest.name!r}. Set the variable in the "
                "process that starts the job, because manifests store names only."
            )
        values[name] = source
    return Variables(values)


def _split_secrets(value: str) -> Iterator[str]:
    """Yields the revealing parts of a value: the whole value, and its longer lines."""
    whole = value.strip()
    if len(whole) >= FEWEST_HIDDEN_CHARS:
        yield whole
    for line in map(str.strip, _LINE_END.split(whole)):
        if len(line) >= FEWEST_HIDDEN_LINE_CHARS:
            yield line


def _list_forms(text: str) -> set[str]:
    """Returns the printed forms of a text: plain, in a Python literal, and in JSON."""
    literal = repr(text)[1:-1]
    quoted = literal.replace("'", "\\'")  # next to a double quote, in a longer literal
    return {
        text,
        literal,
        quoted,
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
    }


def _seal(text: str) -> tuple[bytes, bytes]:
    data = text.encode()
    pad = os.urandom(len(data))
    return pad, bytes(a ^ b for a, b in zip(data, pad, strict=True))


def _unseal(*pairs: tuple[tuple[bytes, bytes], tuple[bytes, bytes]]) -> Variables:
    return Variables({_decode(*name): _decode(*value) for name, value in pairs})


def _decode(pad: bytes, sealed: bytes) -> str:
    return bytes(a ^ b for a, b in zip(pad, sealed, strict=True)).decode()
