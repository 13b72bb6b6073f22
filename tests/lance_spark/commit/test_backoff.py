"""When a commit is tried again. The clock is a number, and no test sleeps."""

from __future__ import annotations

import itertools

import pytest

from lance_spark.commit.commit_loop import CommitPolicy, Outdated, Rounds, evaluate_until_committed
from lance_spark.errors import OptionError


class SleepClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def rounds(self, **policy: float) -> Rounds:
        return Rounds(
            policy=CommitPolicy(**policy),  # type: ignore[arg-type]
            clock=lambda: self.now,
            sleep=self.sleep,
            uniform=lambda _, most: most,
        )

    def attempt(self, rounds: Rounds, *, race: bool, lasts: float = 1.0) -> bool:
        rounds.begin()
        self.now += lasts
        return rounds.again(race=race)


def test_the_wait_doubles_in_slots_of_the_first_attempt() -> None:
    clock = SleepClock()
    rounds = clock.rounds()
    for lasts in (0.01, 5.0, 5.0):
        assert clock.attempt(rounds, race=True, lasts=lasts)
    assert clock.slept == pytest.approx([0.02, 0.04, 0.08])


def test_rounds_without_progress_are_bounded() -> None:
    clock = SleepClock()
    rounds = clock.rounds(max_retries=3, timeout_s=1e9)
    assert [clock.attempt(rounds, race=False) for _ in range(4)] == [True, True, True, False]
    assert rounds.retries == 3
    assert not clock.attempt(clock.rounds(max_retries=0), race=False)


def test_lost_races_are_not_counted_and_end_at_the_timeout() -> None:
    clock = SleepClock()
    rounds = clock.rounds(max_retries=0, timeout_s=1800)
    tried = sum(
        1
        for _ in itertools.takewhile(
            bool, (clock.attempt(rounds, race=True) for _ in range(10_000))
        )
    )
    assert tried > 50
    assert clock.now <= 1802


def test_the_number_of_retries_is_the_option_else_the_environment_else_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = "LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES"
    monkeypatch.delenv(variable, raising=False)
    assert CommitPolicy.of(None).max_retries == 10
    monkeypatch.setenv(variable, "3")
    assert CommitPolicy.of(None).max_retries == 3
    assert CommitPolicy.of(0).max_retries == 0
    monkeypatch.setenv(variable, "many")
    with pytest.raises(OptionError, match=variable):
        CommitPolicy.of(None)


@pytest.mark.parametrize(
    ("progress", "attempts"), [([], 3), ([True, False, True], 6), ([True] * 50, 53)]
)
def test_an_outdated_evaluation_is_repeated_while_the_policy_allows(
    progress: list[bool], attempts: int
) -> None:
    made: list[int] = []

    def evaluate(attempt: int) -> Outdated:
        made.append(attempt)
        error = OSError(f"attempt {attempt}")
        return Outdated(error=error, progress=attempt < len(progress) and progress[attempt])

    with pytest.raises(OSError, match=f"attempt {attempts - 1}$"):
        evaluate_until_committed(evaluate, CommitPolicy(max_retries=2), subject="a statement")
    assert made == list(range(attempts))


def test_attempts_with_progress_end_after_the_retries_and_the_timeout() -> None:
    made: list[int] = []

    def evaluate(attempt: int) -> Outdated:
        made.append(attempt)
        return Outdated(error=OSError("outdated"), progress=True)

    with pytest.raises(OSError, match="outdated"):
        evaluate_until_committed(
            evaluate, CommitPolicy(max_retries=2, timeout_s=0), subject="a statement"
        )
    assert made == [0, 1, 2]


def test_a_committed_evaluation_ends_the_attempts() -> None:
    outcomes = [Outdated(error=OSError("outdated")), 7]
    assert (
        evaluate_until_committed(outcomes.__getitem__, CommitPolicy(), subject="a statement") == 7
    )
