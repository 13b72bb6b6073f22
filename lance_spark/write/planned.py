"""A planned write in the form kept by Spark's JVM, and the answers of its tasks.

The driver pickles the writer for the tasks and for its own commit. Answers of tasks are JSON: the
driver never unpickles a task's answer.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StructField, StructType

from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql.datasource import WriterCommitMessage

    from lance_spark.commit.changes import CommitResult

_ANSWER = StructType([StructField("message", BinaryType())])
"""Spark's schema of the answer of a write task."""


class WriteAnswer(Protocol):
    """The answer of a write task."""

    def to_json(self) -> dict[str, Any]:
        """Returns the answer as JSON values."""


class TaskWriter(Protocol):
    """A write run by Spark's tasks. Picklable."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:  # noqa: ANN401 - an answer
        """Writes the rows of a task, and returns the answer."""

    def read_answer(self, values: dict[str, Any]) -> WriterCommitMessage:
        """Returns the answer from the values of its `to_json`."""


class Writer(TaskWriter, Protocol):
    """A write run by Spark's tasks and committed by the driver."""

    def commit_tasks(self, messages: Sequence[WriterCommitMessage | None]) -> CommitResult | None:
        """Makes a version of the answers of all tasks, and returns the result, if known."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes the tasks' files."""


@dataclass(frozen=True, slots=True)
class _WriteTask:
    """The function run by Spark over the rows of a task. Runs on executors."""

    writer: TaskWriter

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answer: WriteAnswer = self.writer.write(rows)
        packed = zlib.compress(json.dumps(answer.to_json()).encode(), 1)
        yield pa.record_batch([pa.array([packed], pa.binary())], names=_ANSWER.names)


def encode_write(writer: TaskWriter) -> dict[str, str]:
    """Returns the function of the tasks and the writer, pickled, as Base64. Runs on the driver."""
    pickler: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    values = {"function": (_WriteTask(writer), _ANSWER), "writer": writer}
    return {name: base64.b64encode(pickler.dumps(value)).decode() for name, value in values.items()}


def decode_writer(text: str) -> Writer:
    """Returns the writer of :func:`encode_write`. Only the JVM of this driver keeps the text."""
    writer: Writer = pickle.loads(base64.b64decode(text))  # noqa: S301 - see above
    return writer


def decode_answers(
    writer: TaskWriter, texts: Sequence[str | None]
) -> list[WriterCommitMessage | None]:
    """Returns the answers of tasks; None for a failed task.

    Args:
        writer: The writer of the tasks.
        texts: The bytes of the tasks' answers, as Base64.
    """
    return [
        None
        if text is None
        else writer.read_answer(load_object(zlib.decompress(base64.b64decode(text))))
        for text in texts
    ]


def fragment_to_json(fragment: FragmentMetadata) -> Any:  # noqa: ANN401 - JSON
    """Returns JSON values of a fragment's files and deletions.

    Omits row ids, versions of rows and offsets of overlays, which no commit takes from a task.
    """
    return replace(
        fragment,
        row_id_meta=None,
        created_at_version_meta=None,
        last_updated_at_version_meta=None,
        overlays=[replace(overlay, offsets=[]) for overlay in fragment.overlays],
    ).to_json()


def fragment_from_json(values: Any) -> FragmentMetadata:  # noqa: ANN401 - JSON
    """Returns the fragment of :func:`fragment_to_json`'s values."""
    from lance.fragment import FragmentMetadata

    return FragmentMetadata.from_json(json.dumps(values))
