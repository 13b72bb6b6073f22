"""The retry loop of every commit: look at the head, build the operation, commit once, look again.

An operation is never sent again as it is: each round builds it anew against the head that it looked
at. Each round first looks for the job's own transaction, so a reply that was lost, or a commit that
is repeated with the same job id, finds its result and does not commit twice.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lance_spark.commit.attempt import Lost, Unknown
from lance_spark.commit.backoff import CommitPolicy, Rounds
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import JOB_KEY, MESSAGE_KEY, SUMMARY_KEY, Event, find_job
from lance_spark.commit.store_check import refuse_unsafe_store
from lance_spark.dataset import DatasetRef, is_local
from lance_spark.errors import CommitConflictError, CommitError, CommitOutcomeUnknownError, TableNotFoundError

if TYPE_CHECKING:
    import lance

_logger = logging.getLogger(__name__)

Check = Callable[["lance.LanceDataset", int], None]
"""Checks a version that a commit made above a version that the round has looked at. Raises if what
came between does not fit."""

Round = Callable[["lance.LanceDataset | None", int], CommitResult | Lost | Unknown]
"""Builds the operation for the latest version (None: no table) and commits it once; the number is
that of the rounds before. A `CommitError` says that no further round can help."""


def run_rounds(
    ref: DatasetRef,
    job_id: str,
    since: int,
    one_round: Round,
    policy: CommitPolicy,
    *,
    known: dict[int, Event] | None = None,
    check: Check | None = None,
    make_rounds: Callable[[CommitPolicy], Rounds] = lambda policy: Rounds(policy=policy),
) -> CommitResult:
    """Runs rounds until one commits, one raises, or the policy ends it.

    Before each round the job's own transaction is looked for in the versions after `since`; what is
    read for that is added to `known`. `check` looks at a commit whose reply was lost. With
    `make_rounds` tests inject clock and sleep.

    Raises:
        CommitConflictError: Other writers kept coming first.
        CommitOutcomeUnknownError: The store did not answer, and whether the commit happened is not
            known. The files must be kept.
        CommitError: The commit did not happen, for another reason.
    """
    refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
    rounds = make_rounds(policy)
    unanswered: Exception | None = None
    sent = _Sent(ref=ref, check=check)
    while True:
        rounds.begin()
        try:
            head = _open_head(ref)
            if head is not None:
                mine = find_job(head, job_id, after=since, known=known)
                if mine is not None:
                    return sent.checked(mine, head)
                since = max(since, head.version)
                sent.versions[rounds.retries] = head.version
            outcome = one_round(head, rounds.retries)
        except (OSError, CommitError) as error:
            # Only an object store can still make a version of a request that it did not answer.
            is_final = isinstance(error, CommitError) and is_local(ref.uri)
            if unanswered is None or is_final or isinstance(error, CommitOutcomeUnknownError):
                raise
            return _resolve_unknown(sent, job_id, since, error)
        if isinstance(outcome, CommitResult):
            return outcome
        if isinstance(outcome, Unknown):
            unanswered = outcome.error
        _logger.debug("commit to %s did not land: %s", ref.uri, outcome.error)
        lasts = isinstance(outcome, Unknown) and outcome.lasts
        if lasts or not rounds.again(race=isinstance(outcome, Lost) and outcome.race):
            break
    if unanswered is not None:
        return _resolve_unknown(sent, job_id, since, unanswered)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sent:
    """The commits of one loop: the version that each round has looked at, by the rounds before."""

    ref: DatasetRef
    check: Check | None
    versions: dict[int, int] = dataclasses.field(default_factory=dict)

    def checked(self, result: CommitResult, head: lance.LanceDataset) -> CommitResult:
        """Returns a commit that was found in the history, after a look at what slipped in."""
        read = self.versions.get(result.retries)
        if self.check is not None and read is not None:
            self.check(head.checkout_version(result.version), read)
        return dataclasses.replace(result, uri=self.ref.uri)


def _resolve_unknown(sent: _Sent, job_id: str, since: int, error: Exception) -> CommitResult:
    """Finds out what became of a commit that got no answer, as far as that can be known.

    On a local file system a failed call leaves nothing under way, so what cannot be found did not
    happen; on an object store a request may still arrive.
    """
    ref = sent.ref
    try:
        head = _open_head(ref)
        mine = None if head is None else find_job(head, job_id, after=since)
    except OSError as again:
        error = again
    else:
        if head is not None and mine is not None:
            return sent.checked(mine, head)
        if is_local(ref.uri):
            raise CommitError(
                f"the commit failed: {error} - at {ref.uri} - nothing was committed; check permissions and space there",
                uri=ref.uri,
            ) from error
    raise CommitOutcomeUnknownError(
        f"the store failed before it said whether the commit happened: {error} - at {ref.uri}, job {job_id} - written "
        "files are kept; call lance_spark.last_commit(path) when the store answers again: it shows the job if it was "
        "committed, else write again",
        uri=ref.uri,
    ) from error


def properties_of(result: CommitResult, message: str | None, given: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Returns what a transaction of ours carries: the job, its summary, and what the user gave."""
    properties = {**dict(given), JOB_KEY: result.job_id, SUMMARY_KEY: result.to_json()}
    return properties if message is None else {**properties, MESSAGE_KEY: message}
