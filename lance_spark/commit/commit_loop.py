"""The retry loop of every commit: look at the head, build the operation, commit once, look again.

An operation is never sent again as it is: each round builds it anew against the head that it looked
at. Each round first looks for the job's own transaction, so a reply that was lost, or a commit that
is repeated with the same job id, finds its result and does not commit twice.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from lance_spark.commit.attempt import Lost, Unknown
from lance_spark.commit.backoff import CommitPolicy, Rounds
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import JOB_KEY, MESSAGE_KEY, SUMMARY_KEY, Event, find_job
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, is_local
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    TableNotFoundError,
)
from lance_spark.lance_compat import plain

if TYPE_CHECKING:
    import lance

_logger = logging.getLogger(__name__)

Check = Callable[["lance.LanceDataset", int], None]
"""Checks a version that a commit made above a version that the round has looked at. Raises if what
came between does not fit."""

_T = TypeVar("_T")

Round = Callable[["lance.LanceDataset | None", int], _T | Lost | Unknown]
"""Builds the operation for the latest version (None: no table) and commits it once; the number is
that of the rounds before. A `CommitError` says that no further round can help."""


def run_rounds(
    ref: DatasetRef,
    job_id: str,
    since: int,
    one_round: Round[CommitResult],
    policy: CommitPolicy,
    *,
    known: dict[int, Event] | None = None,
    check: Check | None = None,
    make_rounds: Callable[[CommitPolicy], Rounds] = lambda policy: Rounds(policy=policy),
) -> CommitResult:
    """Commits the result of a job, as :func:`commit_with_retries` does.

    Before each round the job's own transaction is looked for in the versions after `since`; what is
    read for that is added to `known`. `check` looks at a commit whose reply was lost.
    """
    looked_at: dict[int, int] = {}

    def noted_round(head: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        if head is not None:
            looked_at[retries] = head.version
        return one_round(head, retries)

    def find(head: lance.LanceDataset, after: int) -> CommitResult | None:
        mine = find_job(head, job_id, after=after, known=known)
        if mine is None:
            return None
        read = looked_at.get(mine.retries)
        if check is not None and read is not None:
            check(head.checkout_version(mine.version), read)
        return dataclasses.replace(mine, uri=ref.uri)

    advice = (
        f"job {job_id} - written files are kept; call lance_spark.last_commit(path) when the store answers again: it "
        "shows the job if it was committed, else write again"
    )
    return commit_with_retries(ref, noted_round, find, policy, since=since, advice=advice, make_rounds=make_rounds)


def commit_with_retries(
    ref: DatasetRef,
    one_round: Round[_T],
    find: Callable[[lance.LanceDataset, int], _T | None],
    policy: CommitPolicy,
    *,
    since: int,
    advice: str,
    head: lance.LanceDataset | None = None,
    make_rounds: Callable[[CommitPolicy], Rounds] = lambda policy: Rounds(policy=policy),
) -> _T:
    """Runs rounds until one commits, one raises, or the policy ends it. The only such loop.

    Args:
        ref: The table.
        one_round: Makes one attempt on the latest version.
        find: Returns the result of an earlier attempt, if a version after the given one has it.
        policy: Bounds the rounds.
        since: The version after which the first round looks for an earlier attempt.
        advice: What to do if the store gives no answer, for the error.
        head: The latest version, if the caller has just opened it.
        make_rounds: Tests inject clock and sleep.

    Raises:
        CommitConflictError: Other writers kept coming first.
        CommitOutcomeUnknownError: The store did not answer, and whether the commit happened is not
            known. The files must be kept.
        CommitError: The commit did not happen, for another reason.
    """
    refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
    rounds = make_rounds(policy)
    unanswered: Exception | None = None
    while True:
        rounds.begin()
        try:
            head = _open_head(ref) if head is None else head
            if head is not None:
                mine = find(head, since)
                if mine is not None:
                    return mine
                since = max(since, head.version)
            outcome = one_round(head, rounds.retries)
        except (OSError, CommitError) as error:
            # Only an object store can still make a version of a request that it did not answer.
            is_final = isinstance(error, CommitError) and is_local(ref.uri)
            if unanswered is None or is_final or isinstance(error, CommitOutcomeUnknownError):
                _raise_typed(ref, error)
            return _resolve_unknown(ref, find, since, error, advice)
        head = None
        if not isinstance(outcome, Lost | Unknown):
            return outcome
        if isinstance(outcome, Unknown):
            unanswered = outcome.error
        _logger.debug("commit to %s did not land: %s", ref.uri, outcome.error)
        lasts = isinstance(outcome, Unknown) and outcome.lasts
        if lasts or not rounds.again(race=isinstance(outcome, Lost) and outcome.race):
            break
    if unanswered is not None:
        return _resolve_unknown(ref, find, since, unanswered, advice)
    raise CommitConflictError(
        f"other writers kept committing first: gave up after {rounds.retries} retries, the last time because of: "
        f"{outcome.error} - at {ref.uri} - nothing was committed; try again, or raise commit_max_retries",
        uri=ref.uri,
    ) from outcome.error


def _open_head(ref: DatasetRef) -> lance.LanceDataset | None:
    try:
        return ref.open_latest()
    except TableNotFoundError:
        return None


def _raise_typed(ref: DatasetRef, error: Exception) -> NoReturn:
    """Raises an error that came before the commit, as an error of ours."""
    if isinstance(error, LanceSparkError):
        raise error
    raise CommitError(
        f"The store failed before the commit: {plain(error)}. Table: {ref.uri}. Nothing was committed. Try again when "
        "the store answers.",
        uri=ref.uri,
    ) from error


def _resolve_unknown(
    ref: DatasetRef,
    find: Callable[[lance.LanceDataset, int], _T | None],
    since: int,
    error: Exception,
    advice: str,
) -> _T:
    """Finds out what became of a commit that got no answer, as far as that can be known.

    On a local file system a failed call leaves nothing under way, so what cannot be found did not
    happen; on an object store a request may still arrive.
    """
    try:
        head = _open_head(ref)
        mine = None if head is None else find(head, since)
    except OSError as again:
        error = again
    else:
        if mine is not None:
            return mine
        if is_local(ref.uri):
            raise CommitError(
                f"the commit failed: {error} - at {ref.uri} - nothing was committed; check permissions and space there",
                uri=ref.uri,
            ) from error
    raise CommitOutcomeUnknownError(
        f"the store failed before it said whether the commit happened: {error} - at {ref.uri}, {advice}",
        uri=ref.uri,
    ) from error


def properties_of(result: CommitResult, message: str | None, given: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Returns what a transaction of ours carries: the job, its summary, and what the user gave."""
    properties = {**dict(given), JOB_KEY: result.job_id, SUMMARY_KEY: result.to_json()}
    return properties if message is None else {**properties, MESSAGE_KEY: message}
