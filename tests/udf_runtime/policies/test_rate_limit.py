from __future__ import annotations

import itertools
import pickle
import random

import pytest

from udf_runtime import RateLimit, UdfDefinitionError
from udf_runtime.policies import MinuteBudget


def most_in_a_minute(spent: list[tuple[float, float]]) -> float:
    return max(
        sum(amount for at, amount in spent if start <= at < start + 60) for start, _ in spent
    )


@pytest.mark.parametrize("limit", [1, 30, 60, 600, 90_000])
def test_no_minute_has_more_than_the_limit_and_the_limit_is_used(limit: int):
    budget, rng = MinuteBudget(limit), random.Random(1)
    spent, at = list[tuple[float, float]](), 0.0
    while at < 300:
        amount = rng.randint(1, max(1, limit // 50))
        wait_s = budget.wait_s(amount, at)
        if wait_s == 0:
            budget.spend(amount, at)
            spent.append((at, amount))
        at += wait_s

    assert most_in_a_minute(spent) <= limit
    assert sum(amount for _, amount in spent) >= 0.9 * limit * 300 / 60


@pytest.mark.parametrize("pause_s", [0.0, 0.05, 0.4, 0.6])
def test_frequent_calls_never_wait_long_and_keep_to_the_limit(pause_s: float):
    budget = MinuteBudget(600)
    spent, at = list[tuple[float, float]](), 0.0
    while at < 200:
        if count := budget.available(at):
            budget.spend(count, at)
            spent.append((at, count))
        at += pause_s or budget.wait_s(1, at)

    assert most_in_a_minute(spent) <= 600
    assert max(later - earlier for (earlier, _), (later, _) in itertools.pairwise(spent)) < 5
    assert sum(amount for _, amount in spent) >= 0.9 * 2000


def test_calls_spread_over_the_minute():
    budget = MinuteBudget(600)
    assert budget.available(0.0) == 20  # two seconds of the limit
    budget.spend(20, 0.0)
    assert [budget.available(second) for second in (0.0, 0.1, 1.0, 30.0)] == [0, 1, 10, 20]
    assert budget.wait_s(5, 30.0) == 0


def test_an_amount_above_the_limit_is_taken_alone():
    budget = MinuteBudget(100)
    assert budget.wait_s(500, 0.0) == 0
    budget.spend(500, 0.0)
    assert budget.wait_s(1, 30.0) > 0
    # The debt of 497 takes 300 seconds.
    assert budget.wait_s(1, 290.0) > 0
    assert budget.wait_s(1, 310.0) == 0


def test_a_limit_below_a_call_per_minute_allows_single_calls():
    budget = MinuteBudget(0.5)
    assert budget.available(0.0) == 1
    budget.spend(1, 0.0)
    assert [budget.available(second) for second in (59.0, 119.0, 120.0)] == [0, 0, 1]


def test_the_arguments_of_a_limit_are_checked():
    for arguments in (
        {},
        {"calls_per_minute": 0},
        {"tokens_per_minute": 10},
        {"calls_per_minute": 10, "tokens": len},
        {"calls_per_minute": float("nan")},
    ):
        with pytest.raises(UdfDefinitionError):
            RateLimit(**arguments)


def test_a_function_of_tokens_is_unpickled_at_its_first_call():
    payload = pickle.dumps(RateLimit(tokens_per_minute=9, tokens=len))
    again = pickle.loads(pickle.dumps(pickle.loads(payload)))

    assert again.tokens("four") == 4
    assert (again.tokens_per_minute, again.calls_per_minute) == (9, None)
