"""Tasks that update or delete rows of fragments by conditions in Lance SQL. Run on executors.

A task opens the version of the statement, and writes files that belong to no version yet:
deletions, column files with new values, or fragments of moved rows. Memory: some batches of rows,
and 16 bytes for each matching row of a fragment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.dml import strategy
from lance_spark.dml.column_files import ColumnFiles
from lance_spark.dml.results import RowEditResult
from lance_spark.dml.strategy import UpdateStrategy
from lance_spark.errors import ValueConversionError
from lance_spark.rows.matching_rows import matching_addresses, matching_rows
from lance_spark.rows.row_addresses import (
    ROW_ADDRESS,
    ROW_ID,
    SnapshotRows,
    fragments_of,
    offsets_of,
    runs_of,
)
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import Targets
from lance_spark.staging.data_file import FragmentSink
from lance_spark.staging.file_layout import FileLayout
from lance_spark.types.fields import quote_identifier
from udf_runtime.execute.conversion.casts import can_become, cast

if TYPE_CHECKING:
    import lance
    from lance.fragment import LanceFragment

Task: TypeAlias = Literal["count", "cheaper", UpdateStrategy]
"""The work of a task: count matching rows, apply a strategy, or, in the only task of a statement,
count the rows and apply the cheaper strategy."""

MOST_ROWS = 1 << 20
"""Maximum rows of a new fragment."""
MOST_BYTES = 90 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EditSpec:
    """The shared description of all tasks of a statement. Picklable.

    Attributes:
        table: The version of the statement.
        where: Condition on rows in Lance SQL; None for all rows.
        mask: Mask of the matching rows, if an index of the driver has found all of them.
        expressions: Columns with their expressions in Lance SQL.
        constants: A row with the values of the other columns.
        targets: The assigned columns.
        stable: Whether rows keep their ids.
    """

    table: DatasetRef
    staging: Staging
    where: str | None
    mask: bytes | None = None
    expressions: tuple[tuple[str, str], ...] = ()
    constants: pa.RecordBatch | None = None
    targets: Targets | None = None
    stable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A task of a statement over some fragments."""

    spec: EditSpec
    task: Task
    fragments: tuple[int, ...]

    def run(self) -> RowEditResult:
        """Counts, deletes, moves or updates the matching rows. Runs on an executor."""
        result = RowEditResult(fragments=list(self.fragments))
        rows = SnapshotRows(self.spec.table.open())
        handles = [rows.existing_fragment(number) for number in self.fragments]
        task = self.task
        if task == "count":
            result.counts = self._count(rows, handles)
        elif task == "cheaper":
            result.counts = self._count(rows, handles)
            handles = [rows.existing_fragment(number) for number in result.counts]
            if handles:
                self._apply(
                    self._choose_strategy(rows.dataset, handles, result.counts),
                    rows,
                    handles,
                    result,
                )
        else:
            self._apply(task, rows, handles, result)
        return result

    def _count(self, rows: SnapshotRows, handles: Sequence[LanceFragment]) -> dict[int, int]:
        """Returns the number of matching rows of each fragment with a match."""
        return {number: len(offsets) for number, offsets in _matching(self.spec, rows, handles)}

    def _choose_strategy(
        self,
        dataset: lance.LanceDataset,
        handles: Sequence[LanceFragment],
        counts: Mapping[int, int],
    ) -> UpdateStrategy:
        assert self.spec.targets is not None
        physical = {handle.fragment_id: handle.metadata.physical_rows for handle in handles}
        columns = self.spec.targets.schema.names
        return strategy.choose_strategy(self.spec.table, dataset, columns, counts, physical)

    def _apply(
        self,
        chosen: UpdateStrategy,
        rows: SnapshotRows,
        handles: Sequence[LanceFragment],
        result: RowEditResult,
    ) -> None:
        """Applies a strategy to the matching rows of fragments."""
        match chosen:
            case "delete":
                for number, offsets in _matching(self.spec, rows, handles):
                    delete_rows(rows.existing_fragment(number), offsets, result)
            case "rows":
                _Moves(self.spec, rows, result).run(handles)
            case "columns":
                _write_columns(self.spec, rows, result, handles)


def _matching(
    spec: EditSpec, rows: SnapshotRows, fragments: Sequence[LanceFragment]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the matching rows by fragment. One scan serves all, and queries an index once."""
    parts = (
        (number, offsets_of(addresses[start:end]))
        for addresses in matching_addresses(
            rows.dataset, fragments, spec.where, spec.mask, use_index=spec.mask is None
        )
        for number, start, end in runs_of(fragments_of(addresses))
    )
    for number, group in itertools.groupby(parts, key=itemgetter(0)):
        yield number, np.concatenate([offsets for _, offsets in group])


def delete_rows(fragment: LanceFragment, offsets: np.ndarray, result: RowEditResult) -> None:
    """Deletes rows of a fragment in a file that belongs to no version yet."""
    if len(offsets) == 0:
        return
    metadata = fragment.metadata
    updated_metadata = None
    if len(offsets) < metadata.physical_rows - metadata.num_deletions:
        updated_metadata = fragment.delete_rows(offsets.tolist())
    if updated_metadata is None:
        result.removed.append(fragment.fragment_id)
    else:
        result.updated.append(updated_metadata.to_json())
    result.deleted += len(offsets)


def _write_columns(
    spec: EditSpec, rows: SnapshotRows, result: RowEditResult, fragments: Sequence[LanceFragment]
) -> None:
    """Writes a column file for each fragment with a matching row."""
    assert spec.targets is not None
    files = ColumnFiles(spec.staging, rows, spec.targets, result)
    try:
        for number, offsets, batch in _scan(spec, rows, fragments, dict(spec.expressions)):
            files.append(number, offsets, _values(spec, batch, spec.targets.schema, number))
        files.close()
    except BaseException:
        files.discard()
        raise


class _Moves:
    """Moves rows of some fragments to new fragments. Belongs to one task."""

    def __init__(self, spec: EditSpec, rows: SnapshotRows, result: RowEditResult) -> None:
        layout = FileLayout.of_table(rows.dataset, rows.dataset.schema.names)
        self._spec = spec
        self._rows = rows
        self._result = result
        self._schema = layout.row_schema
        self._sink = FragmentSink(spec.staging, layout, max_rows=MOST_ROWS, max_bytes=MOST_BYTES)
        self._ids: list[np.ndarray] = []
        self._moved: list[np.ndarray] = []
        self._current = -1

    def run(self, fragments: Sequence[LanceFragment]) -> None:
        """Moves the matching rows."""
        spec = self._spec
        columns = {name: quote_identifier(name) for name in self._schema.names}
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
            add_moved(self._result, self._sink, self._ids if spec.stable else None)
        except BaseException:
            self._sink.abandon()
            raise

    def _delete(self) -> None:
        """Deletes the moved rows of a fragment."""
        if not self._moved:
            return
        moved_offsets = np.concatenate(self._moved)
        self._moved = []
        delete_rows(self._rows.existing_fragment(self._current), moved_offsets, self._result)
        self._result.deleted -= len(moved_offsets)
        self._result.changed += len(moved_offsets)


def add_moved(result: RowEditResult, sink: FragmentSink, ids: list[np.ndarray] | None) -> None:
    """Adds the fragments of a sink, with the ids of their rows."""
    all_ids: Any = (
        None
        if ids is None
        else pa.array(np.concatenate([np.empty(0, dtype=np.uint64), *ids]), pa.uint64())
    )
    at = 0
    for fragment in sink.finish():
        result.add_fragment(
            fragment, None if all_ids is None else all_ids.slice(at, fragment.physical_rows)
        )
        at += fragment.physical_rows


def _scan(
    spec: EditSpec, rows: SnapshotRows, fragments: Sequence[LanceFragment], columns: dict[str, str]
) -> Iterator[tuple[int, np.ndarray, pa.RecordBatch]]:
    """Yields the matching rows: fragment, offsets, and expressions with address and id."""
    batches = matching_rows(
        rows.dataset, fragments, spec.where, columns, spec.mask, use_index=spec.mask is None
    )
    for batch in batches:
        addresses = batch.column(ROW_ADDRESS).to_numpy()
        for number, start, end in runs_of(fragments_of(addresses)):
            yield number, offsets_of(addresses[start:end]), batch.slice(start, end - start)


def _values(
    spec: EditSpec, batch: pa.RecordBatch, schema: pa.Schema, fragment: int
) -> pa.RecordBatch:
    """Returns rows with the columns of a schema, from constants and scanned columns."""
    arrays: list[Any] = []
    constants = (
        {}
        if spec.constants is None
        else dict(zip(spec.constants.schema.names, spec.constants.columns, strict=True))
    )
    for target_field in schema:
        if target_field.name in constants:
            nowhere: Any = pa.array(np.zeros(batch.num_rows, dtype=np.int64))
            arrays.append(constants[target_field.name].take(nowhere))
            continue
        arrays.append(_as(batch.column(target_field.name), target_field, fragment))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as(values: pa.Array[Any], target_field: pa.Field[Any], fragment: int) -> pa.Array[Any]:
    hint = f"in fragment {fragment}; give another expression"
    if values.type != target_field.type:
        try:
            values = _cast(values, target_field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueConversionError(target_field.name, None, f"{error}", hint=hint) from error
    if values.null_count and not target_field.nullable:
        at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueConversionError(
            target_field.name, at, "NULL in a column that may not hold it", hint=hint
        )
    return values


def _cast(values: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Casts the values of an expression exactly to a column's type, and parses texts.

    Raises:
        pa.ArrowException: A value does not fit.
    """
    if can_become(values.type, kind):
        return cast(values, kind)
    converted: Any = values.cast(kind)
    if not (_is_text(values.type) or _is_text(kind)) and not converted.cast(values.type).equals(
        values
    ):
        raise pa.ArrowInvalid(f"{values.type} does not become {kind} without a loss")
    return cast(converted, kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
