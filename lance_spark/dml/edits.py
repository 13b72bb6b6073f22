"""Tasks that update or delete rows of fragments by conditions in Lance SQL. Run on executors.

A task opens the version that the statement reads, and leaves files that belong to no version yet:
deletions, column files with new values, or fragments of moved rows. Memory: some batches of rows,
and 16 bytes for each row of a fragment that matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from lance_spark.backfill.driver.answers import numbers_of
from lance_spark.backfill.planning.selection import matching_addresses
from lance_spark.dataset import DatasetRef
from lance_spark.dml import ways
from lance_spark.dml.answers import Answer, answering
from lance_spark.dml.column_files import ColumnFiles
from lance_spark.dml.ways import Way
from lance_spark.errors import LanceSparkError, ValueConversionError, panics_as_errors
from lance_spark.read.filtering import as_filter_error, conjunction
from lance_spark.rows.row_addresses import ROW_ADDRESS, ROW_ID, SnapshotRows, fragments_of, offsets_of, runs_of
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import Targets
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.fragment_writer import FragmentSink
from udf_runtime.execute.casts import can_become, cast

if TYPE_CHECKING:
    from lance.fragment import LanceFragment

Task: TypeAlias = Literal["count", "cheaper", Way]
"""What tasks do: count the rows that match; change them in one of the ways; or, where one task does
all of a statement, count them first, and change them in the way that is cheaper."""

MOST_ROWS = 1 << 20
"""Rows of a new fragment, at most."""
MOST_BYTES = 90 << 30

_SCAN_ROWS = 8192
_SCAN_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EditSpec:
    """What all tasks of a statement share. Picklable.

    Attributes:
        table: The version that the statement reads.
        where: Condition on rows, in Lance SQL; None for all.
        expressions: Columns that are set to an expression in Lance SQL.
        constants: One row with the values of the columns that are set to values.
        targets: The columns that are set.
        stable: Whether rows keep their ids.
    """

    table: DatasetRef
    staging: Staging
    where: str | None
    expressions: tuple[tuple[str, str], ...] = ()
    constants: pa.RecordBatch | None = None
    targets: Targets | None = None
    stable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Tasks over fragments; a callable for Spark's `mapInArrow` over the numbers of `units`."""

    spec: EditSpec
    task: Task
    units: tuple[tuple[int, ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one answer for each task whose number comes."""
        for number in numbers_of(batches):
            yield answering(lambda unit=self.units[number]: self._work(unit))  # type: ignore[misc]

    def _work(self, fragments: Sequence[int]) -> Answer:
        answer = Answer(fragments=list(fragments))
        rows = SnapshotRows(self.spec.table.open())
        handles = [rows.existing_fragment(number) for number in fragments]
        task = self.task
        if task in ("count", "cheaper"):
            answer.counts = {number: len(offsets) for number, offsets in _matching(self.spec, rows, handles)}
        if task == "cheaper" and answer.counts:
            assert self.spec.targets is not None
            handles = [rows.existing_fragment(number) for number in answer.counts]
            physical = {one.fragment_id: one.metadata.physical_rows for one in handles}
            columns = self.spec.targets.schema.names
            task = ways.cheaper_way(self.spec.table, rows.dataset, columns, answer.counts, physical)
        if task == "delete":
            for number, offsets in _matching(self.spec, rows, handles):
                delete_rows(rows.existing_fragment(number), offsets, answer)
        elif task == "rows":
            _Moves(self.spec, rows, answer).run(handles)
        elif task == "columns":
            _write_columns(self.spec, rows, answer, handles)
        return answer


def _matching(
    spec: EditSpec, rows: SnapshotRows, fragments: Sequence[LanceFragment]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the rows that match, by fragment; one scan serves all, and asks an index once."""
    held: list[np.ndarray] = []
    current = -1
    for addresses in matching_addresses(rows.dataset, fragments, conjunction(spec.where)):
        offsets = offsets_of(addresses)
        for number, start, end in runs_of(fragments_of(addresses)):
            if number != current and held:
                yield current, np.concatenate(held)
                held = []
            current = number
            held.append(offsets[start:end])
    if held:
        yield current, np.concatenate(held)


def delete_rows(fragment: LanceFragment, offsets: np.ndarray, answer: Answer) -> None:
    """Deletes rows of a fragment in a file that belongs to no version yet."""
    if len(offsets) == 0:
        return
    metadata = fragment.metadata
    left = None
    if len(offsets) < metadata.physical_rows - metadata.num_deletions:
        left = fragment.delete_rows(offsets.tolist())
    if left is None:
        answer.removed.append(fragment.fragment_id)
    else:
        answer.updated.append(left.to_json())
    answer.deleted += len(offsets)


def _write_columns(spec: EditSpec, rows: SnapshotRows, answer: Answer, fragments: Sequence[LanceFragment]) -> None:
    """Writes a column file for each fragment with a row that matches."""
    assert spec.targets is not None
    files = ColumnFiles(spec.staging, rows, spec.targets, answer)
    try:
        for number, offsets, batch in _scan(spec, rows, fragments, dict(spec.expressions)):
            files.append(number, offsets, _values(spec, batch, spec.targets.schema, number))
        files.close()
    except BaseException:
        files.discard()
        raise


class _Moves:
    """Moves rows of some fragments to new ones. Belongs to one task."""

    def __init__(self, spec: EditSpec, rows: SnapshotRows, answer: Answer) -> None:
        layout = FileLayout.of_table(rows.dataset, rows.dataset.schema.names)
        self._spec = spec
        self._rows = rows
        self._answer = answer
        self._schema = layout.row_schema
        self._sink = FragmentSink(spec.staging, layout, max_rows=MOST_ROWS, max_bytes=MOST_BYTES)
        self._ids: list[np.ndarray] = []
        self._moved: list[np.ndarray] = []
        self._current = -1

    def run(self, fragments: Sequence[LanceFragment]) -> None:
        """Moves what matches."""
        spec = self._spec
        columns = {name: "`" + name.replace("`", "``") + "`" for name in self._schema.names}
        columns.update(dict(spec.expressions))
        for name in () if spec.constants is None else spec.constants.schema.names:
            del columns[name]
        try:
            for number, offsets, batch in _scan(spec, self._rows, fragments, columns):
                if number != self._current:
                    self._delete()
                    self._current = number
                self._moved.append(offsets)
                self._ids.append(batch.column(ROW_ID).to_numpy())
                self._sink.write(_values(spec, batch, self._schema, number))
            self._delete()
            add_moved(self._answer, self._sink, self._ids if spec.stable else None)
        except BaseException:
            self._sink.abandon()
            raise

    def _delete(self) -> None:
        """Deletes what was moved of a fragment."""
        if not self._moved:
            return
        moved = np.concatenate(self._moved)
        self._moved = []
        delete_rows(self._rows.existing_fragment(self._current), moved, self._answer)
        self._answer.deleted -= len(moved)
        self._answer.changed += len(moved)


def add_moved(answer: Answer, sink: FragmentSink, ids: list[np.ndarray] | None) -> None:
    """Adds the fragments that a sink has written, with the ids of their rows."""
    known: Any = None if ids is None else pa.array(np.concatenate([np.empty(0, dtype=np.uint64), *ids]), pa.uint64())
    at = 0
    for fragment in sink.finish():
        answer.add_fragment(fragment, None if known is None else known.slice(at, fragment.physical_rows))
        at += fragment.physical_rows


def _scan(
    spec: EditSpec, rows: SnapshotRows, fragments: Sequence[LanceFragment], columns: dict[str, str]
) -> Iterator[tuple[int, np.ndarray, pa.RecordBatch]]:
    """Yields the rows that match: fragment, offsets, and expressions with address and id."""
    scanned = fragments[0].fragment_id if fragments else -1
    try:
        with panics_as_errors():
            scanner = rows.dataset.scanner(
                columns=columns or [],
                filter=conjunction(spec.where),
                fragments=list(fragments),
                with_row_id=True,
                with_row_address=True,
                scan_in_order=True,
                batch_size=_SCAN_ROWS,
                batch_size_bytes=_SCAN_BYTES,
            )
            for batch in scanner.to_reader():
                addresses = batch.column(ROW_ADDRESS).to_numpy()
                offsets = offsets_of(addresses)
                for scanned, start, end in runs_of(fragments_of(addresses)):
                    yield scanned, offsets[start:end], batch.slice(start, end - start)
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, LanceSparkError):
            raise
        raise as_filter_error(error, rows.dataset, scanned, spec.where) from error


def _values(spec: EditSpec, batch: pa.RecordBatch, schema: pa.Schema, fragment: int) -> pa.RecordBatch:
    """Returns rows in the columns of a schema: constants, and what was scanned."""
    arrays: list[Any] = []
    for wanted in schema:
        if spec.constants is not None and wanted.name in spec.constants.schema.names:
            nowhere: Any = pa.array(np.zeros(batch.num_rows, dtype=np.int64))
            arrays.append(spec.constants.column(wanted.name).take(nowhere))
            continue
        arrays.append(_as(batch.column(wanted.name), wanted, fragment))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as(values: pa.Array[Any], wanted: pa.Field[Any], fragment: int) -> pa.Array[Any]:
    hint = f"in fragment {fragment}; give another expression"
    if values.type != wanted.type:
        try:
            values = _cast(values, wanted.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueConversionError(wanted.name, None, f"{error}", hint=hint) from error
    if values.null_count and not wanted.nullable:
        at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueConversionError(wanted.name, at, "NULL in a column that may not hold it", hint=hint)
    return values


def _cast(values: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Returns the values of an expression as a column's type, exactly; text is parsed.

    Raises:
        pa.ArrowException: A value does not fit.
    """
    if can_become(values.type, kind):
        return cast(values, kind)
    converted: Any = values.cast(kind)
    if not (_is_text(values.type) or _is_text(kind)) and not converted.cast(values.type).equals(values):
        raise pa.ArrowInvalid(f"{values.type} does not become {kind} without a loss")
    return cast(converted, kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
