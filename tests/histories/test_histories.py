"""Random histories of a table: other writers in their own processes run concurrently with backfills through both APIs,
and each outcome is checked.

Hypothesis draws a history as a list of steps. A failing history therefore shrinks, and is printed as a call to repeat
it: `run(BackfillHistory(...))`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.histories import mutants
from tests.histories.broken import owner_of
from tests.histories.drawing import histories
from tests.histories.model import BackfillHistory, Story
from tests.histories.mutants import histories_for
from tests.histories.processes import HistoryProcesses
from tests.histories.regressions import REGRESSIONS
from tests.histories.runner import BackfillPlayer, HistoryTally, threads_at_gates
from tests.histories.views import mutants as view_mutants
from tests.support.inline_jobs import NoSpark, inline_tasks

pytestmark = pytest.mark.classic

QUICK = (2, 3, 7, 10, 12, 20, 27, 39, 50, 70, 114, 119)
"""Histories of the quick suite: together they contain every kind of operation. Draw new numbers after a change of the
kinds.
"""

LONG, PART = 2000, 250
ON_SPARK = 200
IN_SQL = 200

KINDS = {
    "add column", "append", "cleanup", "cleanup of files", "compaction", "compaction of all", "compaction, deferred", "config and tags",
    "create index", "delete fragment", "delete rows", "drop column", "drop index", "insert", "kill -9", "optimize index", "rename column",
    "rename input", "rename target", "restore", "rewrite input", "rewrite input as it is", "rewrite target", "set input back",
    "take values away", "two of one column", "two of two columns", "update of inputs", "update, inputs kept", "upsert",
    "delete rows, by us", "rewrite input, by us", "ruin", "update of inputs, by us", "upsert, by us",
}  # fmt: skip
"""Kinds that the histories must contain. A few histories may lack three kinds; all kinds of ruin count as a single
kind.
"""

Play = Callable[[BackfillHistory], Story]


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[HistoryProcesses]:
    """Processes; their drivers use Spark in the long suite."""
    processes = HistoryProcesses(**getattr(request, "param", {}))
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def tally() -> HistoryTally:
    return HistoryTally()


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The session for jobs of this process: Spark in the long suite, otherwise this process itself."""
    if getattr(request, "param", "") == "Spark":
        yield request.getfixturevalue("spark")
        return
    with inline_tasks():
        yield NoSpark()


@pytest.fixture(scope="module")
def play(session: Any, pool: HistoryProcesses, tally: HistoryTally) -> Iterator[Play]:
    """Runs a history in a place of its own."""

    def run(history: BackfillHistory) -> Story:
        with tempfile.TemporaryDirectory() as home:
            return BackfillPlayer(
                history, spark=session, pool=pool, home=Path(home), tally=tally
            ).run()

    with threads_at_gates():
        yield run


def run_histories(play: Play, numbers: Iterable[int]) -> None:
    """Draws a history for each number, and runs it.

    Each draw gives a single history, because Hypothesis mostly varies the first history afterwards.
    """

    def run(history: BackfillHistory) -> None:
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


def check_tally(tally: HistoryTally, least: int, *, missed: int) -> None:
    print(f"\n{tally.table()}")
    hit = {kind.partition(":")[0] for kind, _ in tally.hits}
    assert len(KINDS - hit) <= missed, f"not hit: {sorted(KINDS - hit)}"
    assert tally.histories >= least
    assert tally.crossed >= 0.8 * tally.histories


@pytest.mark.sample(8)
@pytest.mark.parametrize("history", REGRESSIONS.values(), ids=REGRESSIONS.keys())
def test_histories_that_were_wrong_once(history: BackfillHistory, play: Play):
    play(history)


@pytest.mark.slow
def test_histories(play: Play, pool: HistoryProcesses, tally: HistoryTally):
    pool.prepare(pool.driver)
    run_histories(play, QUICK)
    check_tally(tally, len(QUICK), missed=3)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LONG, PART))
def test_many_histories(first: int, play: Play, pool: HistoryProcesses, tally: HistoryTally):
    pool.prepare(pool.driver)
    run_histories(play, range(first, first + PART))
    check_tally(tally, PART, missed=1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("session", "pool"), [("Spark", {"driver": "Spark driver"})], indirect=True, ids=["Spark"]
)
def test_histories_on_spark(play: Play, pool: HistoryProcesses, tally: HistoryTally):
    pool.prepare(pool.driver)
    run_histories(play, range(ON_SPARK))
    check_tally(tally, ON_SPARK, missed=0)


@pytest.mark.long
@pytest.mark.parametrize("pool", [{"writer": "SQL writer"}], indirect=True, ids=["SQL"])
def test_histories_with_statements_of_sql(play: Play, pool: HistoryProcesses, tally: HistoryTally):
    pool.prepare(pool.driver)
    run_histories(play, range(IN_SQL))
    check_tally(tally, IN_SQL, missed=3)


# The checker itself detects defects


def test_mutants_replace_functions_of_the_product():
    places = {
        place
        for kind in (mutants, view_mutants)
        for mutant in kind.MUTANTS.values()
        for place in mutant.patches
    }
    assert [place for place in sorted(places) if not hasattr(*owner_of(place))] == []


MOST = 12
"""Most histories until a mutant is detected."""

QUICK_MUTANTS = ("inputs are not compared",)
SPARK_MUTANTS = ("inputs are not compared", "compacted fragments are gone")


def drawn(number: int, name: str) -> BackfillHistory:
    """Returns a history, always the same for the same number."""
    examples: list[BackfillHistory] = []

    def keep(history: BackfillHistory) -> None:
        examples.append(history)

    one_example = settings(max_examples=1, deadline=None, database=None, phases=[Phase.generate])
    seed(number)(one_example(given(histories_for(name))(keep)))()
    return examples[-1]


def detect_mutant(name: str, session: Any, play: Play) -> tuple[int, str]:
    """Runs histories until the checker detects a mutant, and returns their number and the error. The same history
    passes without the mutant.
    """
    pool = HistoryProcesses()
    try:
        for number in range(MOST):
            history = drawn(number, name)
            try:
                with mutants.mutated(name), tempfile.TemporaryDirectory() as home:
                    BackfillPlayer(
                        history, spark=session, pool=pool, home=Path(home), tally=HistoryTally()
                    ).run()
            except Exception as error:  # noqa: BLE001 - whatever it does, it is found
                play(history)
                return number + 1, f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        pool.close()
    pytest.fail(f"{name!r} was not found in {MOST} histories")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_committer_that_is_broken_on_purpose_is_found(name: str, session: Any, play: Play):
    print(detect_mutant(name, session, play))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in mutants.MUTANTS if name not in QUICK_MUTANTS])
def test_each_committer_that_is_broken_on_purpose_is_found(name: str, session: Any, play: Play):
    print(detect_mutant(name, session, play))


@pytest.mark.long
@pytest.mark.parametrize("session", ["Spark"], indirect=True)
@pytest.mark.parametrize("name", SPARK_MUTANTS)
def test_a_committer_that_is_broken_in_workers_of_spark_is_found(
    name: str, session: Any, play: Play
):
    print(detect_mutant(name, session, play))
