"""A habit of LanceDB's synchronous API: an action on a database with the same result in lance-spark.

This module and the modules of cases run in LanceDB's environment, too, and import neither package.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

Jobs = Literal["none", "inline", "spark"]

HABITS: dict[str, Habit] = {}


@dataclass(frozen=True, kw_only=True)
class Habit:
    """A habit.

    Attributes:
        name: Name of the habit, a sentence without its end.
        act: The action. Returns values of JSON.
        expected: The result in lance-spark.
        jobs: Whether the action needs tasks in lance-spark: tasks of this process (`inline`), or Spark's joins.
        differs: Reason for another result than LanceDB's; None for the same result.
    """

    name: str
    act: Callable[[Any, Helpers], Any]
    expected: object
    jobs: Jobs
    differs: str | None


def habit(
    expected: object, *, jobs: Jobs = "none", differs: str | None = None
) -> Callable[[Callable[[Any, Helpers], Any]], Callable[[Any, Helpers], Any]]:
    """Returns a decorator that registers an action as a habit, by the name of the function."""

    def register(act: Callable[[Any, Helpers], Any]) -> Callable[[Any, Helpers], Any]:
        name = act.__name__.strip("_").replace("_", " ")
        assert name not in HABITS, name
        HABITS[name] = Habit(name=name, act=act, expected=expected, jobs=jobs, differs=differs)
        return act

    return register


@dataclass(frozen=True, kw_only=True)
class Helpers:
    """What a case takes from the package under test.

    Attributes:
        names: Module with the classes of indexes and queries.
        is_lancedb: Whether the package is LanceDB.
        index_text: Makes an index of words of a column, without Spark.
    """

    names: Any
    is_lancedb: bool
    index_text: Callable[[Any, str], None]
    modules: dict[str, ModuleType] = field(default_factory=dict)

    def errors(self, *actions: Callable[[], object]) -> list[str]:
        """Returns for each action LanceDB's class of its error, or `none`.

        An error of lance-spark counts as `ValueError` or `RuntimeError` if it derives from this class.
        """
        return [self._error_of(action) for action in actions]

    def _error_of(self, action: Callable[[], object]) -> str:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - any error is the result
            kinds = [cls for cls in (ValueError, RuntimeError) if isinstance(error, cls)]
            return "|".join(cls.__name__ for cls in kinds) or type(error).__name__
        return "none"


def agree(ours: object, theirs: object) -> bool:
    """Tells whether two results are equal; an error of several classes agrees with each of them."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(agree(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) < 1e-4
    if (
        isinstance(ours, str)
        and isinstance(theirs, str)
        and all(hasattr(builtins, name) for name in ours.split("|"))
    ):
        return theirs in ours.split("|") or ours == theirs
    return ours == theirs
