"""The tasks of a compaction, which rewrite fragments of a pinned version on executors."""

from __future__ import annotations

from dataclasses import dataclass

from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, panics_as_errors
from lance_spark.lance_compat import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The result of a task: pylance's `RewriteResult` as JSON, or the error of the task."""

    number: int
    rewrite: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """A task of a plan. Picklable.

    Attributes:
        number: Position in the plan.
        task: pylance's task, as JSON.
    """

    snapshot: DatasetRef
    number: int
    task: str

    def run(self) -> Written:
        """Writes the new fragments. Runs on an executor.

        A task that runs twice writes its files twice, under different names.
        """
        try:
            with panics_as_errors():
                return Written(number=self.number, rewrite=self._rewrite())
        except (LanceSparkError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            return Written(number=self.number, error=plain(error))

    def _rewrite(self) -> str:
        dataset = self.snapshot.open()
        from lance.optimize import CompactionTask as LanceTask

        rewrite_json: str = LanceTask.from_json(self.task).execute(dataset).json()  # type: ignore[attr-defined]
        return rewrite_json
