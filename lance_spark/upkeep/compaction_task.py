"""The part of a compaction that executors run: fragments of a pinned version are written anew."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, panics_as_errors
from lance_spark.lance_compat import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a task answers: pylance's `RewriteResult` as JSON, or why there is none."""

    number: int
    rewrite: str | None = None
    error: str | None = None

    def dump(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps({"number": self.number, "rewrite": self.rewrite, "error": self.error}).encode()

    @staticmethod
    def load(answer: bytes) -> Written:
        """Reads it back."""
        return Written(**json.loads(answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """A task of a plan. Picklable.

    Attributes:
        number: Its place in the plan.
        task: pylance's task, as JSON.
    """

    snapshot: DatasetRef
    number: int
    task: str

    def run(self) -> bytes:
        """Writes the new fragments. Runs on an executor.

        A task that runs twice writes files of other names; one of them no version ever names.
        """
        try:
            with panics_as_errors():
                return Written(number=self.number, rewrite=self._rewrite()).dump()
        except (LanceSparkError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            return Written(number=self.number, error=plain(error)).dump()

    def _rewrite(self) -> str:
        dataset = self.snapshot.open()
        from lance.optimize import CompactionTask as LanceTask

        made: str = LanceTask.from_json(self.task).execute(dataset).json()  # type: ignore[attr-defined]
        return made
