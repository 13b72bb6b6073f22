"""The error of a task attempt that outlives its job: :class:`LateAttemptError`."""

from __future__ import annotations

from lance_spark.errors import CommitError


class LateAttemptError(CommitError):
    """A task attempt finished after the end of its job, like a speculative copy."""

    @staticmethod
    def of(job_id: str, uri: str) -> LateAttemptError:
        """Returns the error of an attempt of a job of a table."""
        return LateAttemptError(
            f"This task attempt came too late, because its job has ended. Job: {job_id}. Table: {uri}. If another "
            "attempt of the task succeeded, as with speculative tasks, no action is needed. If every task reports this "
            "error, the table was deleted, or executors do not share the driver's files. Write to a location that all "
            "machines share.",
            uri=uri,
        )
