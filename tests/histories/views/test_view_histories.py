"""Random histories of views: other writers change the source and the view during refreshes, and every version is
checked.

Hypothesis draws a history as a list of steps. A failing history therefore shrinks, and is printed as a call to repeat
it: `play(ViewHistory(...))`. Refreshes run without Spark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.histories.views import mutants
from tests.histories.views.drawing import histories
from tests.histories.views.model import ViewHistory
from tests.histories.views.refreshes import points
from tests.histories.views.regressions import REGRESSIONS
from tests.histories.views.runner import ViewPlayer, ViewTally

QUICK = 2
LONG, PART = 2000, 200

Play = Callable[[ViewHistory], None]


@pytest.fixture(scope="module")
def tally() -> ViewTally:
    return ViewTally()


@pytest.fixture(scope="module")
def play(tally: ViewTally) -> Iterator[Play]:
    """Runs a history in a place of its own."""

    def run(history: ViewHistory) -> None:
        play_one(history, tally)

    with points():
        yield run


def play_one(history: ViewHistory, tally: ViewTally) -> None:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as home:
        ViewPlayer(history, home=Path(home), tally=tally).run()


def run_histories(play: Play, numbers: range) -> None:
    """Draws a history for each number, and runs it."""

    def run(history: ViewHistory) -> None:
        play(history)

    drawn = settings(
        max_examples=1,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    for number in numbers:
        seed(number)(drawn(given(histories())(run)))()


@pytest.mark.sample(4)
@pytest.mark.parametrize("history", REGRESSIONS.values(), ids=REGRESSIONS.keys())
def test_histories_that_were_wrong_once(history: ViewHistory, play: Play):
    play(history)


def test_view_histories(play: Play, tally: ViewTally):
    run_histories(play, range(QUICK))
    print(f"\n{tally.table()}")


@pytest.mark.long
@pytest.mark.parametrize("first", range(QUICK, QUICK + LONG, PART))
def test_many_view_histories(first: int, play: Play, tally: ViewTally):
    run_histories(play, range(first, first + PART))
    print(f"\n{tally.table()}")


# The checker itself detects defects

MOST = 12
"""Most histories until a mutant is detected."""

QUICK_MUTANT = "values are taken along whatever the input is"


def drawn(number: int, name: str) -> ViewHistory:
    """Returns a history, always the same for the same number."""
    examples: list[ViewHistory] = []

    def keep(history: ViewHistory) -> None:
        examples.append(history)

    one_example = settings(max_examples=1, deadline=None, database=None, phases=[Phase.generate])
    seed(number)(one_example(given(mutants.histories_for(name))(keep)))()
    return examples[-1]


@pytest.mark.parametrize(
    "name",
    [
        name if name == QUICK_MUTANT else pytest.param(name, marks=pytest.mark.long)
        for name in mutants.MUTANTS
    ],
)
def test_a_refresh_that_is_broken_on_purpose_is_found(name: str, play: Play):
    for number in range(MOST):
        history = drawn(number, name)
        try:
            with mutants.applied(name):
                play(history)
        except Exception as error:  # noqa: BLE001 - whatever it does, it is found
            print(f"{number + 1}: {type(error).__name__}: {str(error)[:200]}")
            play(history)
            return
    pytest.fail(f"{name!r} was not found in {MOST} histories")
