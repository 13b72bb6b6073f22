"""The settings of an agent, checked once."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lance_spark.errors import OptionError
from lance_spark.types.fields import quote_identifier
from udf_runtime.arguments import is_whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of :meth:`lance_spark.Connection.agent`.

    Raises:
        OptionError: A setting is not valid.
    """

    allow: tuple[str, ...]
    claim: tuple[str, ...]
    max_jobs: int
    max_calls: int | None
    max_seconds: float | None
    max_cost: float | None
    trigger: timedelta
    debounce: timedelta

    def __post_init__(self) -> None:
        for name in ("max_jobs", "max_calls"):
            value = getattr(self, name)
            if value is not None and not is_whole_number(value):
                raise OptionError(name, value, "a whole number, 1 or more")
        for name in ("max_seconds", "max_cost"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(name, value, "a number above 0, per hour")
        if self.trigger.total_seconds() <= 0:
            raise OptionError("trigger", self.trigger, "a timedelta above 0")
        if self.debounce.total_seconds() < 0:
            raise OptionError("debounce", self.debounce, "a timedelta of 0 or more")

    @property
    def has_budget(self) -> bool:
        """Whether earlier jobs of agents limit further jobs."""
        return (self.max_calls, self.max_seconds, self.max_cost) != (None, None, None)

    def allows(self, table_name: str) -> bool:
        """Tells whether the agent may run stored code of a table."""
        return matches(table_name, self.allow)

    def claims(self, names: Iterable[str]) -> bool:
        """Tells whether the agent owns columns with a UDF of another product, too."""
        return all(matches(name, self.claim) for name in names)


def patterns_of(option: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """Returns the patterns of an option.

    Raises:
        OptionError: A pattern is empty, or a text replaces the list.
    """
    if isinstance(patterns, str) or not all(isinstance(text, str) and text for text in patterns):
        raise OptionError(option, patterns, "a list of names, where * stands for any text")
    return tuple(patterns)


def join_names(names: Iterable[str]) -> str:
    """Returns the names of namespaces and a table, or of a table and a column, as a single name.

    Different names have different results: a name with a dot or a backquote is quoted, as in Spark.
    """
    return ".".join(
        quote_identifier(name) if {".", "`"}.intersection(name) else name for name in names
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tells whether a name matches any of the patterns, with equal case."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
