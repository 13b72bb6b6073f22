"""What tasks that change rows answer, and the Spark jobs that bring these answers to the driver."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from lance_spark import errors
from lance_spark.backfill.driver.answers import NamedJob, collect_answers
from lance_spark.dml.ways import Way
from lance_spark.errors import LanceSparkError, rebuild
from lance_spark.session.sessions import known_slots

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import DataFrame, SparkSession

ANSWER = "answer string"
"""Spark's schema of what tasks answer."""

ANSWER_TO_ALL_ROWS = StructType([StructField("answer", StringType(), metadata={"lance.reads_all_rows": True})])
"""The same, of tasks that read all of their rows. Their Arrow batches end by row sizes
(`LanceTransfer.java`), and a task with unread rows fails."""

_LOG = logging.getLogger(__name__)
_TASK_FRAGMENTS = 1000

TASK_BYTES = 64 << 20
"""Bytes that a task is started for: reading them takes about as long as starting it."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one task did to the rows of some fragments; all of it belongs to no version yet.

    Attributes:
        fragments: Ids of the fragments that it looked at.
        counts: Rows that match, of those fragments that have any; all that a task that only counts
            answers.
        updated: Fragments with more rows deleted, as pylance's JSON.
        removed: Ids of fragments of which no row stays.
        new: Fragments of new and moved rows, as pylance's JSON.
        row_ids: For each of these, the ids of its moved rows as pylance encodes them, in Base64.
        columns: Column files: fragment, name, size, and the rows with new values in Base64.
        error: An error of ours that ended it: class, message and attributes.
    """

    fragments: list[int] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    updated: list[Any] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    new: list[Any] = field(default_factory=list)
    row_ids: list[str] = field(default_factory=list)
    columns: list[tuple[int, str, int | None, str]] = field(default_factory=list)
    inserted: int = 0
    changed: int = 0
    deleted: int = 0
    error: tuple[str, str, dict[str, Any]] | None = None

    def to_batch(self) -> pa.RecordBatch:
        """Returns the row that a task answers."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return pa.RecordBatch.from_arrays([pa.array([json.dumps(values, default=str)])], names=["answer"])

    @property
    def way(self) -> Way | None:
        """The way in which a task of an update changed rows; None where it changed none."""
        return "columns" if self.columns else "rows" if self.new else None

    @staticmethod
    def of(text: str) -> Answer:
        """Reads an answer.

        Raises:
            LanceSparkError: The error that the task ended with.
        """
        values = json.loads(text)
        values["counts"] = {int(number): rows for number, rows in values["counts"].items()}
        answer = Answer(**values)
        if answer.error is not None:
            name, message, state = answer.error
            raise rebuild(getattr(errors, name), (message,), state)
        return answer

    def add_fragment(self, fragment: FragmentMetadata, ids: pa.UInt64Array | None) -> None:
        """Adds a new fragment; its first rows have these ids."""
        from lance.fragment import RowIdSequence

        made = fragment.to_json()
        encoded = b"" if ids is None else bytes(json.loads(RowIdSequence(ids).to_inline_metadata().json())["Inline"])
        self.new.append(made)
        self.row_ids.append(base64.b64encode(encoded).decode())

    def new_fragments(self) -> Iterator[FragmentMetadata]:
        """Yields the new fragments, with the row ids that they carry."""
        from lance.fragment import FragmentMetadata

        for made, ids in zip(self.new, self.row_ids, strict=True):
            inline = {"Inline": list(base64.b64decode(ids))} if ids else None
            yield FragmentMetadata.from_json(json.dumps({**made, "row_id_meta": inline}))

    def updated_fragments(self) -> Iterator[FragmentMetadata]:
        """Yields the fragments that have more rows deleted."""
        from lance.fragment import FragmentMetadata

        return (FragmentMetadata.from_json(json.dumps(made)) for made in self.updated)


def answering(work: Callable[[], Answer], rows: Iterable[pa.RecordBatch] = ()) -> pa.RecordBatch:
    """Returns what a task answers: its work, or the error of ours that ended it.

    Reads the rest of the rows before the error is the answer. Other errors are raised, and Spark
    tries the task again.
    """
    try:
        return work().to_batch()
    except LanceSparkError as error:
        if not hasattr(errors, type(error).__name__):
            raise
        for _ in rows:
            pass
        return Answer(error=(type(error).__name__, str(error), error.__dict__)).to_batch()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowJobs:
    """The Spark jobs of one statement. Belongs to the driver."""

    spark: SparkSession
    tag: str
    description: str

    def over_fragments(
        self, fragments: list[tuple[int, int]], task: Callable[[tuple[tuple[int, ...], ...]], Any]
    ) -> list[Answer]:
        """Runs tasks over fragments, given with about how many bytes are read or written of each.

        `task` makes what tasks call, from the fragments of each of them.
        """
        if not fragments:
            return []
        total = sum(work for _, work in fragments)
        share = 0 if total <= TASK_BYTES else total // (known_slots(self.spark) or 8) // 4
        units = packed(fragments, max(TASK_BYTES, share))
        call = task(units)
        return self.answers(lambda: self.spark.range(0, len(units), 1, len(units)).mapInArrow(call, ANSWER))

    def alone(self, task: Callable[[Iterator[pa.RecordBatch]], Any]) -> list[Answer]:
        """Runs one task."""
        return self.answers(lambda: self.spark.range(0, 1, 1, 1).mapInArrow(task, ANSWER))

    def answers(self, frame: Callable[[], DataFrame]) -> list[Answer]:
        """Returns what the tasks of a DataFrame answer.

        Raises:
            LanceSparkError: A task ended with it.
        """
        job = NamedJob(tag=self.tag, description=self.description)
        return [Answer.of(text) for text in collect_answers(self.spark, frame, job)]


def packed(fragments: list[tuple[int, int]], work: int) -> tuple[tuple[int, ...], ...]:
    """Packs fragments, given with their work, into tasks of about so much."""
    units: list[list[int]] = []
    held = 0
    for number, some in fragments:
        if not units or held + some > work or len(units[-1]) >= _TASK_FRAGMENTS:
            units.append([])
            held = 0
        units[-1].append(number)
        held += some
    return tuple(map(tuple, units))
