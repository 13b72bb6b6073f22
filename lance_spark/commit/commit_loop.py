"""The retry loop of every commit: open the latest version, build the operation, commit, repeat.

Each round builds the operation again, for the latest version that the round opened. Operations of
earlier rounds are never resent. Each round first searches the history for the job's own
transaction. A lost reply, or a second commit with the same job id, therefore returns the first
result and commits nothing.

:func:`evaluate_until_committed` is the loop around a commit and the evaluation of its rows. The
loop evaluates again after concurrent commits outdated the evaluation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar

from lance_spark.commit.attempt import Lost, Unknown
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import JOB_KEY, MESSAGE_KEY, SUMMARY_KEY, find_job
from lance_spark.commit.dropped import OpenedVersion, note_landed, refuse_dropped
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import FOLDER, DatasetRef
from lance_spark.errors import (
    CommitConflictError,
    CommitError,
    CommitOutcomeUnknownError,
    LanceSparkError,
    OptionError,
    TableNotFoundError,
)
from lance_spark.lance_compat import plain
from lance_spark.locations import is_local
from lance_spark.metrics import measure_commit
from lance_spark.namespaces.access import is_managed
from lance_spark.namespaces.errors import NamespaceError

if TYPE_CHECKING:
    import lance

    from lance_spark.commit.app_transaction import PendingTransaction

_logger = logging.getLogger(__name__)

RETRIES_VARIABLE = "LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES"
DEFAULT_RETRIES = 10
DEFAULT_TIMEOUT_S = 30 * 60.0

_MOST_DOUBLINGS = 8
_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """Bounds the retries of a commit.

    Attributes:
        max_retries: Number of rounds without progress before the commit gives up. Lost races for a
            version slot are not counted: another writer made progress, and the content is fine.
        timeout_s: Seconds before the commit gives up in any case.
        allow_unsafe: Whether to commit to an object store on which concurrent writers lose each
            other's work.
    """

    max_retries: int = DEFAULT_RETRIES
    timeout_s: float = DEFAULT_TIMEOUT_S
    allow_unsafe: bool = False

    @staticmethod
    def of(
        max_retries: int | None, timeout_s: float | None = None, *, allow_unsafe: bool | None = None
    ) -> CommitPolicy:
        """Returns the policy for the options' values; by default from the environment.

        Raises:
            OptionError: The environment variable is not a number.
        """
        if max_retries is None:
            text = os.environ.get(RETRIES_VARIABLE, str(DEFAULT_RETRIES))
            if not text.strip().isdecimal():
                raise OptionError(RETRIES_VARIABLE, text, "a number, 0 or more")
            max_retries = int(text)
        return CommitPolicy(
            max_retries=max_retries,
            timeout_s=DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
            allow_unsafe=allowed_by_environment() if allow_unsafe is None else allow_unsafe,
        )


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Counts the rounds of one commit, and waits between the rounds. Belongs to one thread.

    A slot lasts as long as the first attempt of the commit. After a lost race the commit waits for
    a random number of slots, and each loss doubles the upper bound of this number. Colliding
    writers therefore spread out, on fast and slow stores alike.
    """

    policy: CommitPolicy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform
    retries: int = 0
    _fruitless: int = 0
    _slot_s: float | None = None
    _began: float | None = None
    _attempt_began: float = field(default=0.0)

    def begin(self) -> None:
        """Records the start of an attempt."""
        self._attempt_began = self.clock()
        if self._began is None:
            self._began = self._attempt_began

    def again(self, *, race: bool) -> bool:
        """Waits for the next round, or returns False if the policy ends the loop.

        In a `race` the attempt only lost a version slot.
        """
        now_s = self.clock()
        if self._slot_s is None:
            self._slot_s = now_s - self._attempt_began
        if not race:
            if self._fruitless >= self.policy.max_retries:
                return False
            self._fruitless += 1
        slots = 1 << min(self.retries + 1, _MOST_DOUBLINGS)
        wait = min(self._slot_s * self.uniform(0, slots), _LONGEST_WAIT_S)
        if now_s + wait - (now_s if self._began is None else self._began) > self.policy.timeout_s:
            return False
        self.retries += 1
        self.sleep(wait)
        return True


Check = Callable[["lance.LanceDataset", int], None]
"""Checks a landed version (first argument) against the version that the round opened (the number).
Raises if the commits between the two do not fit."""


class HasVersion(Protocol):
    """The result of a commit. The version is None, or is no later version, without a commit."""

    @property
    def version(self) -> int | None:
        """The number of the version."""


_T = TypeVar("_T", bound=HasVersion)
_Evaluation = TypeVar("_Evaluation")

Round = Callable[["lance.LanceDataset | None", int], _T | Lost | Unknown]
"""Builds the operation for the latest version (None: no table) and commits once. The number counts
the earlier rounds. A `CommitError` means that further rounds cannot help."""


def commit_job(
    ref: DatasetRef,
    job_id: str,
    since: int,
    one_round: Round[CommitResult],
    policy: CommitPolicy,
    *,
    check: Check | None = None,
    head: lance.LanceDataset | None = None,
    refuses_dropped: bool = False,
) -> CommitResult:
    """Commits the result of a job, as :func:`commit_with_retries` does.

    Each round first searches the versions after `since` for the job's own transaction. `check`
    validates a commit whose reply was lost. The other arguments are those of the function.
    """
    looked_at: dict[int, int] = {}

    def noted_round(head: lance.LanceDataset | None, retries: int) -> CommitResult | Lost | Unknown:
        if head is not None:
            looked_at[retries] = head.version
        return one_round(head, retries)

    def find(head: lance.LanceDataset, after: int) -> CommitResult | None:
        prior_result = find_job(head, job_id, after=after)
        if prior_result is None:
            return None
        read = looked_at.get(prior_result.retries)
        if check is not None and read is not None:
            check(_open_landed(ref, head, prior_result.version), read)
        return dataclasses.replace(prior_result, uri=ref.uri)

    advice = (
        f"The files of job {job_id} are kept. Call lance_spark.last_commit(path) when the store answers again. Write "
        "again unless the last commit is of this job."
    )
    return commit_with_retries(
        ref,
        noted_round,
        find,
        policy,
        since=since,
        advice=advice,
        head=head,
        refuses_dropped=refuses_dropped,
    )


def _open_landed(ref: DatasetRef, head: lance.LanceDataset, version: int) -> lance.LanceDataset:
    """Opens the version of a landed commit for its check.

    Raises:
        CommitOutcomeUnknownError: A cleanup has deleted the version.
    """
    try:
        return head.checkout_version(version)
    except ValueError as error:
        raise _cleaned_up(ref, error) from error


def _cleaned_up(ref: DatasetRef, error: Exception) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        "The commit made a version, the store failed at its check, and a cleanup deleted the version before another "
        f"check: {plain(error)}. Table: {ref.uri}. Compare the table with what was written before you write again.",
        uri=ref.uri,
    )


def _unchecked(ref: DatasetRef, error: Exception) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"The commit made a version, and the store failed before the check that the table still exists: "
        f"{plain(error)}. Table: {ref.uri}. Compare the table with what was written when the store answers.",
        uri=ref.uri,
    )


def _dropped(ref: DatasetRef) -> CommitConflictError:
    return CommitConflictError(
        f"The table was deleted right after the commit, before its check. Table: {ref.uri}. The table is not made "
        "again. Write again to make it.",
        uri=ref.uri,
    )


def commit_with_retries(
    ref: DatasetRef,
    one_round: Round[_T],
    find: Callable[[lance.LanceDataset, int], _T | None],
    policy: CommitPolicy,
    *,
    since: int,
    advice: str,
    head: lance.LanceDataset | None = None,
    refuses_dropped: bool = False,
) -> _T:
    """Runs rounds until a round commits or raises, or the policy ends the loop. The only such loop.

    Args:
        ref: The table.
        one_round: Makes one attempt on the latest version.
        find: Returns the result of an earlier attempt, if a version after the given number has
            the attempt.
        policy: Bounds the rounds.
        since: The first round searches the versions after this number for an earlier attempt.
        advice: What to do if the store does not answer, as the end of the error.
        head: The latest version, if the caller has just opened the table.
        refuses_dropped: Whether the rounds themselves refuse a table that was deleted at the moment
            of the commit.

    Raises:
        CommitConflictError: Other writers kept committing first, or a concurrent writer deleted the
            table at the moment of the commit.
        CommitOutcomeUnknownError: The store did not answer, and the commit may or may not have
            happened. The files must be kept.
        CommitError: The commit did not happen, for another reason.
    """
    refuse_unsafe_store(ref.uri, ref.storage, allow=policy.allow_unsafe)
    loop = _CommitLoop(
        ref=ref,
        one_round=one_round,
        find=find,
        rounds=Rounds(policy=policy),
        since=since,
        advice=advice,
        head=head,
        refuses_dropped=refuses_dropped,
    )
    if f"/{FOLDER}/" in ref.uri:  # the history of jobs and the like
        loop.refuses_dropped = True  # the commit of the table itself has the check
        return loop.run()
    with measure_commit(lambda: loop.rounds.retries):
        return loop.run()


@dataclass(slots=True, kw_only=True)
class _CommitLoop(Generic[_T]):
    """The loop of a commit, with the arguments of :func:`commit_with_retries`.

    Attributes:
        head: The latest version, if the next round need not open the table.
        unanswered: The attempts without an answer.
        refused: The error of a check that refused, and took back, a commit without an answer.
        opened: The versions that the rounds without an answer opened.
    """

    ref: DatasetRef
    one_round: Round[_T]
    find: Callable[[lance.LanceDataset, int], _T | None]
    rounds: Rounds
    since: int
    advice: str
    head: lance.LanceDataset | None
    refuses_dropped: bool
    unanswered: list[Unknown] = field(default_factory=list)
    refused: CommitError | None = None
    opened: list[OpenedVersion | None] = field(default_factory=list)

    @property
    def has_landed(self) -> bool:
        """Whether an attempt without an answer made a version. No other attempt follows."""
        return any(unknown.has_landed for unknown in self.unanswered)

    def run(self) -> _T:
        while True:
            self.rounds.begin()
            try:
                outcome = self._run_round()
            except (OSError, CommitError) as error:
                if self._is_final(error):
                    _raise_typed(self.ref, error)
                return self._resolve_unknown(error)
            if not isinstance(outcome, Lost | Unknown):
                return outcome
            if isinstance(outcome, Unknown):
                self.unanswered.append(outcome)
            _logger.debug("commit to %s did not land: %s", self.ref.uri, outcome.error)
            if outcome.lasts or not self.rounds.again(race=outcome.race):
                break
        if self.has_landed or self._count_in_flight():
            return self._resolve_unknown(self.unanswered[-1].error)
        if isinstance(outcome, Unknown):
            _raise_typed(self.ref, outcome.error)
        raise CommitConflictError(
            f"Other writers kept committing first, so the commit gave up after {self.rounds.retries} retries: "
            f"{plain(outcome.error)}. Table: {self.ref.uri}. Nothing was committed. Try again, or raise "
            "commit_max_retries.",
            uri=self.ref.uri,
        ) from outcome.error

    def _run_round(self) -> _T | Lost | Unknown:
        head = open_head(self.ref) if self.head is None else self.head
        self.head = None
        if head is not None:
            prior_result = self._find(head)
            if prior_result is not None:
                self._accept_found(head, prior_result)
                return prior_result
            self.since = max(self.since, head.version)
        if self.has_landed:
            raise (
                _dropped(self.ref)
                if head is None
                else _cleaned_up(self.ref, self.unanswered[-1].error)
            )
        opened = None if head is None or self.refuses_dropped else OpenedVersion.of(head)
        outcome = self.one_round(head, self.rounds.retries)
        if isinstance(outcome, Unknown):
            self.opened.append(opened)
        elif (
            opened is not None
            and not isinstance(outcome, Lost)
            and (outcome.version or 0) > opened.version
        ):
            self._refuse_dropped(opened)
        return outcome

    def _accept_found(self, head: lance.LanceDataset, found: _T) -> None:
        """Notes a commit of an earlier round as ours, and checks the commit like other commits."""
        if self.unanswered and isinstance(found, CommitResult):  # found by the id of its job
            with contextlib.suppress(OSError, ValueError):  # a cleanup may have deleted the version
                note_landed(
                    head if found.version == head.version else head.checkout_version(found.version)
                )
        # An attempt is sent only after its round did not find the earlier attempts.
        sent = [
            opened
            for opened in self.opened
            if opened is not None and opened.version < (found.version or 0)
        ]
        if sent:
            try:
                self._refuse_dropped(sent[-1])
            except CommitError as error:
                self.refused = error
                raise

    def _refuse_dropped(self, opened: OpenedVersion) -> None:
        """Checks a landed commit, again if the store fails.

        Raises:
            TableDroppedError: A concurrent writer deleted the table.
            CommitOutcomeUnknownError: The store failed at the check.
        """
        while True:
            try:
                return refuse_dropped(self.ref, opened)
            except OSError as error:
                if not self.rounds.again(race=False):
                    raise _unchecked(self.ref, error) from error

    def _find(self, head: lance.LanceDataset) -> _T | None:
        """Returns the result of an earlier attempt, or None.

        Raises:
            CommitError: The version has an earlier attempt, and its check refused the attempt.
        """
        try:
            return self.find(head, self.since)
        except CommitError as error:
            self.refused = error
            raise

    def _is_final(self, error: Exception) -> bool:
        """Tells whether an error of a round also settles the earlier attempts without an answer.

        Only an object store may still execute a request after a call without an answer, unless a
        version has the attempt.
        """
        if isinstance(error, CommitOutcomeUnknownError):
            return True
        in_flight = self._count_in_flight() - (error is self.refused)
        if isinstance(error, CommitError):
            return in_flight <= 0 or self._is_settled()
        return in_flight <= 0 and not self.has_landed

    def _count_in_flight(self) -> int:
        """Returns the number of attempts without an answer whose requests may still arrive."""
        return sum(unknown.in_flight() and not unknown.has_landed for unknown in self.unanswered)

    def _is_settled(self) -> bool:
        """Tells whether a failed commit has ended.

        An object store or a namespace may execute a request later.
        """
        try:
            return is_local(self.ref.uri) and not is_managed(self.ref.table_uri, self.ref.storage)
        except NamespaceError:
            return False

    def _resolve_unknown(self, error: Exception) -> _T:
        """Searches the table for a commit without an answer. Returns its result, or raises.

        On a local file system a failed call has ended, so a commit missing from the history did not
        happen. On an object store a request may still arrive.
        """
        uri = self.ref.uri
        try:
            head = open_head(self.ref)
            prior_result = None if head is None else self.find(head, self.since)
            is_settled = self._is_settled()
            if head is not None and prior_result is not None:
                self._accept_found(head, prior_result)
        except OSError as second_error:
            error = second_error
        else:
            if prior_result is not None:
                return prior_result
            if is_settled and not self.has_landed:
                raise CommitError(
                    f"The commit failed: {plain(error)}. Table: {uri}. Nothing was committed. Check the permissions "
                    "and the free space of the folder.",
                    uri=uri,
                ) from error
        raise CommitOutcomeUnknownError(
            f"The store failed before its answer, so the commit may or may not have happened: {plain(error)}. Table: "
            f"{uri}. {self.advice}",
            uri=uri,
        ) from error


def open_head(ref: DatasetRef) -> lance.LanceDataset | None:
    """Opens the latest version, or returns None without a table."""
    try:
        return ref.open_latest()
    except TableNotFoundError:
        return None


def _raise_typed(ref: DatasetRef, error: Exception) -> NoReturn:
    """Raises a failure before the commit as an error of this package."""
    if isinstance(error, LanceSparkError):
        raise error
    raise CommitError(
        f"The store failed before the commit: {plain(error)}. Table: {ref.uri}. Nothing was committed. Try again when "
        "the store answers.",
        uri=ref.uri,
    ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """Concurrent commits outdated an evaluation before its commit.

    Attributes:
        error: The reason.
        progress: Whether a part of the evaluation was committed.
    """

    error: Exception
    progress: bool = False


def evaluate_until_committed(
    evaluate_and_commit: Callable[[int], _Evaluation | Outdated],
    policy: CommitPolicy,
    *,
    subject: str,
) -> _Evaluation:
    """Evaluates the latest version and commits, again while commits outdate the evaluation.

    The only such loop. The policy limits the attempts in sequence without progress. Attempts with
    progress end after the policy's retries and its timeout, whichever is later.

    Args:
        evaluate_and_commit: Makes one attempt. The number counts the earlier attempts.
        policy: Bounds the attempts.
        subject: The evaluated object, for the log.

    Raises:
        Exception: The error of the last outdated attempt, or any error that an attempt raises.
    """
    began, attempts, fruitless = time.monotonic(), 0, 0
    while True:
        outcome = evaluate_and_commit(attempts)
        if not isinstance(outcome, Outdated):
            return outcome
        attempts += 1
        fruitless = 0 if outcome.progress else fruitless + 1
        is_late = attempts > policy.max_retries and time.monotonic() - began > policy.timeout_s
        if fruitless > policy.max_retries or is_late:
            raise outcome.error
        _logger.info("%s is evaluated again: %s", subject, outcome.error)
        del outcome  # the traceback of its error keeps all objects of the attempt


def properties_of(
    result: CommitResult,
    message: str | None,
    properties: Iterable[tuple[str, str]] = (),
    pending: PendingTransaction | None = None,
) -> dict[str, str]:
    """Returns the properties of a Lance transaction.

    The properties name the job, its summary, the user's properties, and the transaction of an
    application.
    """
    of_app = () if pending is None else pending.transaction.properties
    stamped = {
        **dict(properties),
        **dict(of_app),
        JOB_KEY: result.job_id,
        SUMMARY_KEY: result.to_json(),
    }
    return stamped if message is None else {**stamped, MESSAGE_KEY: message}
