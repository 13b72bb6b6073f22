"""New values of a cast column, one file per fragment: :class:`CastFiles`.

A Spark job writes the files of a large table. This process writes the files of a small table.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lance_spark.commit.changes import StagedColumns
from lance_spark.commit.conflicts.identity import (
    FragmentIdentity,
    field_identities,
    fragment_identity,
    ids_of,
)
from lance_spark.commit.verify import same_columns
from lance_spark.dataset import DatasetRef
from lance_spark.errors import RegistrationError
from lance_spark.jobs.plain_record import Done, noted
from lance_spark.rows.input_reader import InputReader
from lance_spark.rows.row_addresses import ROW_ADDRESS, SnapshotRows, offsets_of
from lance_spark.spark_jobs.run import SparkJobs, SparkJobTag
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import ColumnFile, Targets
from lance_spark.staging.file_layout import FileLayout
from udf_runtime.execute.conversion.casts import cast as cast_values

if TYPE_CHECKING:
    import lance
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

_STAGED_NAME = "lance-spark-cast"
"""Name of the new values in a data file. Lance reads the values by field id."""

JOB_TYPE = "alter_columns"
"""Type of a cast's job in the history."""

_LOCAL_BYTES = 64 << 20
"""Maximum bytes of data files for a cast in this process."""

_BATCH_ROWS = 1 << 16
_BLOB_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CastFile:
    """A file with the new values of all physical rows of a fragment."""

    fragment_id: int
    name: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _CastState:
    """The state of a fragment at its cast.

    Attributes:
        identity: The fragment with the files of the column.
        deletions: The deletion file; None without deleted rows.
    """

    identity: FragmentIdentity
    deletions: str | None

    def serves(self, later: _CastState) -> bool:
        """Tells whether a file of this state has the values of all live rows of a later state.

        Deleted rows have NULL in the file, and a concurrent restore brings them back.
        """
        return self.identity == later.identity and self.deletions in (None, later.deletions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CastTask:
    """The cast of a column in one fragment of a pinned version. Picklable.

    Attributes:
        field: The new field.
        format: Lance file format of the table.
    """

    snapshot: DatasetRef
    staging: Staging
    fragment_id: int
    column: str
    field: pa.Field[Any]
    format: str

    def run(self) -> CastFile:
        """Writes the file. Runs on an executor, or in the driver's process.

        Raises:
            RegistrationError: A value does not fit the new type.
            TableUnreadableError: A file is missing or damaged.
        """
        rows = SnapshotRows(self.snapshot.open())
        fragment = rows.existing_fragment(self.fragment_id)
        targets = Targets(
            schema=pa.schema([staged_field(self.field)]), existing=(), format=self.format
        )
        reader = InputReader(
            rows, fragment, (self.column,), blob_strategy="auto", blob_buffer_bytes=_BLOB_BYTES
        )
        file = ColumnFile(self.staging.begin_attempt(), rows, fragment, targets)
        try:
            live_rows = np.arange(fragment.metadata.num_rows, dtype=np.int64)
            for batch in reader.batches(live_rows, _BATCH_ROWS):
                values = pa.RecordBatch.from_arrays(
                    [self._convert(batch.column(0))], schema=targets.schema
                )
                file.append(offsets_of(batch.column(ROW_ADDRESS).to_numpy()), values)
            staged = file.close().staged
        except BaseException:
            file.discard()
            raise
        return CastFile(
            fragment_id=self.fragment_id, name=staged.name, size_bytes=staged.size_bytes
        )

    def _convert(self, values: pa.Array[Any]) -> pa.Array[Any]:
        if values.null_count and not self.field.nullable:
            raise self._misfit("NULL in a NOT NULL column")
        try:
            converted: pa.Array[Any] = cast_values(values, self.field.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise self._misfit(error) from error
        return converted

    def _misfit(self, reason: object) -> RegistrationError:
        return RegistrationError(
            f"A value of column {self.column!r} does not fit {self.field.type}: {reason}. Nothing was changed in "
            f"{self.snapshot.uri}. Change the value, or choose another type."
        )


def staged_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Returns the field of new values in a file. Deleted rows have NULL."""
    return field.with_name(_STAGED_NAME).with_nullable(True)


class CastFiles:
    """The files of a cast. Files of unchanged fragments serve later versions of the table.

    Attributes:
        staging: The staging area of the files.
    """

    def __init__(
        self, ref: DatasetRef, column: str, spark: Callable[[], SparkSession] | None
    ) -> None:
        """Takes the table, the column, and the session for a large table; None needs no session."""
        self.staging = Staging.of_new_job(ref)
        self._ref, self._column, self._spark = ref, column, spark
        self._files: dict[int, tuple[_CastState, CastFile]] = {}
        self._fragments = 0

    @contextlib.contextmanager
    def recorded(
        self, snapshot: DatasetRef, versions: Sequence[int]
    ) -> Iterator[Callable[[], None]]:
        """Records a cast of a large table as a job in the table's history, while the block runs.

        Yields a function that waits for the first record, before the first change of the table.

        Args:
            snapshot: The version that decides about the record.
            versions: The committed version, after the commit.

        Raises:
            LanceSparkError: The history cannot be written.
        """
        dataset = snapshot.open()
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        if not self._needs_spark(fragments):
            yield lambda: None
            return
        began = time.monotonic()
        self._fragments = len(fragments)

        def report() -> Done:
            fragments_done = min(len(self._files), self._fragments)
            seconds = {"total": time.monotonic() - began}
            return Done(
                versions=tuple(versions),
                fragments_total=self._fragments,
                fragments_done=fragments_done,
                seconds=seconds,
            )

        job_id, columns = self.staging.job_id, (self._column,)
        with noted(
            self._ref, job_id, JOB_TYPE, read_version=dataset.version, done=report, columns=columns
        ) as await_start:
            yield await_start

    def write(self, head: lance.LanceDataset, field: pa.Field[Any]) -> Mapping[int, CastFile]:
        """Writes the missing files for a version, and returns the files by fragment.

        Raises:
            RegistrationError: A value does not fit the new type.
        """
        snapshot = replace(self._ref, version=head.version)
        states = self._states(head)
        tasks = [
            CastTask(
                snapshot=snapshot,
                staging=self.staging,
                fragment_id=fragment_id,
                column=self._column,
                field=field,
                format=head.data_storage_version,
            )
            for fragment_id, state in states.items()
            if fragment_id not in self._files or not self._files[fragment_id][0].serves(state)
        ]
        for file in self._run(tasks, head):
            self._files[file.fragment_id] = states[file.fragment_id], file
        return {fragment_id: self._files[fragment_id][1] for fragment_id in states}

    def _states(self, head: lance.LanceDataset) -> dict[int, _CastState]:
        columns = [
            field for field in field_identities(head.lance_schema) if field.name == self._column
        ]
        ids = ids_of(columns)
        fragments = (fragment.metadata for fragment in head.get_fragments())
        # Other columns do not change the values of the column.
        return {
            fragment.id: _CastState(
                identity=replace(
                    fragment_identity(fragment, ids), files=frozenset(), deleted_rows=0
                ),
                deletions=None if fragment.deletion_file is None else str(fragment.deletion_file),
            )
            for fragment in fragments
        }

    def _run(self, tasks: Sequence[CastTask], head: lance.LanceDataset) -> list[CastFile]:
        chosen = {task.fragment_id for task in tasks}
        fragments = [
            fragment.metadata for fragment in head.get_fragments() if fragment.fragment_id in chosen
        ]
        if self._spark is None or not self._needs_spark(fragments):
            return [task.run() for task in tasks]
        tag = SparkJobTag.of(
            self.staging.job_id, f"lance-spark: cast of {self._column} in {self._ref.uri}"
        )
        return SparkJobs(self._spark(), tag, answers_errors=True).results(tasks, CastFile)

    def _needs_spark(self, fragments: Iterable[FragmentMetadata]) -> bool:
        """Tells whether tasks of Spark cast the fragments."""
        stored_bytes = sum(
            file.file_size_bytes or _LOCAL_BYTES
            for fragment in fragments
            for file in fragment.files
        )
        return self._spark is not None and stored_bytes > _LOCAL_BYTES


def cast_fragments(
    head: lance.LanceDataset, files: Mapping[int, CastFile], field: pa.Field[Any], first_id: int
) -> list[FragmentMetadata]:
    """Returns the fragments of a version with the files of a cast; field ids from `first_id` on."""
    layout = FileLayout.of_new_table(pa.schema([staged_field(field)]), head.data_storage_version)
    like = copy.copy(layout.file)
    like.fields = [first_id + number for number in layout.file.fields]
    fragments = []
    for fragment in head.get_fragments():
        metadata = fragment.metadata
        file = files[metadata.id]
        metadata.files = [
            *metadata.files,
            same_columns(like, StagedColumns(name=file.name, size_bytes=file.size_bytes)),
        ]
        fragments.append(metadata)
    return fragments
