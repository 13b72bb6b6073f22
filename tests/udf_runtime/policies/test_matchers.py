"""Matchers, waits between attempts, and the decision of a list of matchers."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_runtime.errors import SkipThresholdExceededError, UdfDefinitionError
from udf_runtime.policies import (
    Backoff,
    ErrorPolicy,
    Fail,
    Retry,
    Skip,
    fail_fast,
    retry_all,
    retry_transient,
    skip_on_error,
)

RNG = random.Random(7)


def action(policy: ErrorPolicy, error: BaseException, attempt: int = 1) -> str:
    return policy.decide(error, attempt=attempt, rng=RNG).action


def test_no_policy_fails_at_the_first_error():
    assert action(ErrorPolicy.of(None), ValueError()) == "fail"


def test_a_matcher_is_about_subclasses_of_its_exceptions_and_no_others():
    assert Skip(OSError).matches(ConnectionResetError())
    assert not Skip(ConnectionError).matches(OSError())
    assert Skip().matches(SystemExit())


def test_match_is_searched_in_the_text_of_the_error():
    assert Skip(ValueError, match=r"rate.limit").matches(ValueError("hit the rate limit"))
    assert not Skip(ValueError, match=r"^limit").matches(ValueError("hit the rate limit"))
    assert not Skip(KeyError, match=r"rate").matches(ValueError("hit the rate limit"))


def test_an_exception_whose_text_cannot_be_made_still_gets_a_decision():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert action(ErrorPolicy.of([Skip(match="nothing"), Fail()]), MuteError()) == "fail"


def test_the_first_matcher_in_the_list_decides():
    assert action(ErrorPolicy.of([Skip(ValueError), Fail()]), ValueError()) == "skip"
    assert action(ErrorPolicy.of([Fail(), Skip(ValueError)]), ValueError()) == "fail"
    assert action(ErrorPolicy.of([Fail(match="fatal"), Skip()]), ValueError("fatal")) == "fail"
    assert action(ErrorPolicy.of([Fail(match="fatal"), Skip()]), ValueError("other")) == "skip"


def test_a_used_up_retry_leaves_the_decision_to_the_matchers_behind_it():
    policy = ErrorPolicy.of([Skip(KeyError), Retry(max_attempts=3), Fail(OSError), Skip()])
    assert [action(policy, ValueError(), attempt) for attempt in (1, 2, 3, 4)] == [
        "retry",
        "retry",
        "skip",
        "skip",
    ]
    assert [action(policy, OSError(), attempt) for attempt in (2, 3)] == ["retry", "fail"]
    assert action(policy, KeyError()) == "skip"
    assert policy.decide_finally(ValueError()).action == "skip"
    assert (policy.max_attempts(ValueError()), policy.max_attempts(KeyError())) == (3, 1)


def test_a_later_retry_with_more_attempts_goes_on_counting():
    policy = ErrorPolicy.of([Retry(OSError, max_attempts=2), Retry(max_attempts=4)])
    assert [action(policy, OSError(), attempt) for attempt in (1, 2, 3, 4)] == [
        "retry",
        "retry",
        "retry",
        "fail",
    ]
    assert policy.max_attempts(OSError()) == 4


def test_factories_do_what_their_names_say():
    assert action(fail_fast(), ValueError()) == "fail"
    assert action(skip_on_error(), ValueError()) == "skip"
    assert action(retry_all(), ValueError()) == "retry"
    assert [
        action(retry_transient(), error())
        for error in (ConnectionError, TimeoutError, OSError, ValueError)
    ] == [
        "retry",
        "retry",
        "retry",
        "fail",
    ]
    assert action(retry_transient(max_attempts=1), OSError()) == "fail"


def test_policies_join_and_nest_in_lists():
    joined = retry_transient() + skip_on_error()
    assert (
        joined
        == ErrorPolicy.of([retry_transient(), Skip()])
        == ErrorPolicy.of([*retry_transient(), Skip()])
    )
    assert ErrorPolicy.of(joined) is joined
    assert ErrorPolicy.of(Skip()) == skip_on_error()


def test_policies_survive_pickling():
    policy = ErrorPolicy.of(
        [Retry(OSError, match="x", backoff="linear"), Skip(max_skip_count=3), Fail(KeyError)]
    )
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    "wrong", ["skip", 3, Skip, [Skip], [skip_on_error], [ValueError], {"on": "error"}]
)
def test_invalid_policies_are_refused(wrong: object):
    with pytest.raises(
        UdfDefinitionError,
        match=r"of on_error is no error policy\. Give|argument 'on_error' has the wrong value",
    ):
        ErrorPolicy.of(wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Skip(match="("),
        lambda: Retry(ValueError("an instance")),
        lambda: Fail(int),
        lambda: Retry(max_attempts=0),
        lambda: Retry(max_attempts=True),
        lambda: Retry(backoff="quick"),
        lambda: Retry(backoff=Backoff(initial_s=5, max_s=1)),
        lambda: Skip(max_skip_count=-1),
        lambda: Skip(max_skip_fraction=1.5),
        lambda: Skip(max_skip_fraction=float("nan")),
    ],
)
def test_matchers_check_their_arguments(make):
    with pytest.raises(UdfDefinitionError):
        make()


@given(attempt=st.integers(1, 5000), seed=st.integers())
def test_exponential_waits_lie_between_one_second_and_a_minute(attempt: int, seed: int):
    delay_s = Backoff().delay_s(attempt, random.Random(seed))
    assert 1.0 <= delay_s <= min(60.0, 2.0 ** min(attempt, 10))


def test_fixed_and_linear_waits():
    assert [Backoff(kind="fixed").delay_s(attempt, RNG) for attempt in (1, 2, 9)] == [1.0, 1.0, 1.0]
    assert [Backoff(kind="linear").delay_s(attempt, RNG) for attempt in (1, 2, 90)] == [
        1.0,
        2.0,
        60.0,
    ]
    assert Backoff(initial_s=0, max_s=0).delay_s(4, RNG) == 0.0


def test_a_decision_to_retry_carries_the_wait_of_its_own_matcher():
    policy = ErrorPolicy.of(
        [Retry(OSError, backoff="fixed"), Retry(backoff=Backoff(kind="linear", initial_s=7))]
    )
    assert policy.decide(OSError(), attempt=1, rng=RNG).delay_s == 1.0
    assert policy.decide(ValueError(), attempt=2, rng=RNG).delay_s == 14.0


def test_the_skip_count_is_judged_at_once_and_the_fraction_in_the_end():
    policy = skip_on_error(max_skip_count=2, max_skip_fraction=0.1)
    policy.check_skips(2, 2, final=False)
    policy.check_skips(2, 20, final=True)
    with pytest.raises(SkipThresholdExceededError, match="max_skip_count=2") as caught:
        policy.check_skips(3, 1000, final=False)
    assert (caught.value.skipped, caught.value.processed) == (3, 1000)
    with pytest.raises(SkipThresholdExceededError, match=r"max_skip_fraction=0\.1"):
        policy.check_skips(2, 19, final=True)


def test_the_least_limit_of_all_skips_holds_for_all_rows_together():
    policy = ErrorPolicy.of(
        [Skip(KeyError, max_skip_count=9), Skip(max_skip_count=4, max_skip_fraction=0.5)]
    )
    assert policy.threshold == (4, 0.5)
    assert ErrorPolicy.of(Skip()).threshold == (None, None)
    ErrorPolicy.of(None).check_skips(5, 5, final=True)


def test_a_limit_of_zero_is_a_limit():
    with pytest.raises(SkipThresholdExceededError):
        skip_on_error(max_skip_count=0).check_skips(1, 100, final=False)
    with pytest.raises(SkipThresholdExceededError):
        skip_on_error(max_skip_fraction=0.0).check_skips(1, 100, final=True)
    skip_on_error(max_skip_fraction=0.0).check_skips(0, 0, final=True)
