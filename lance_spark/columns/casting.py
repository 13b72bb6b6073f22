"""Casts a column in a single commit and keeps the field metadata. Checks casts beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as t

from lance_spark.columns.binding import Binding, binding_of, value_type
from lance_spark.columns.cast_files import CastFiles, cast_fragments
from lance_spark.commit.schema_change import change_schema
from lance_spark.dataset import DatasetRef
from lance_spark.errors import RegistrationError, StoredUdfError
from lance_spark.lance_compat import with_replaced_field
from lance_spark.staging.area import commit_or_give_up, finish
from lance_spark.types import check_storable
from lance_spark.types.fields import Kind, is_binary, is_blob, is_list, is_text
from udf_runtime.execute.conversion.casts import cast as cast_values

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from pyspark.sql import SparkSession

_VIEW_EXPRESSION = b"lance-spark:expression"
"""Field metadata of a view's column. A cast column lacks this key, and a refresh refuses the
column."""

_FLOAT_DIGITS = {16: 11, 32: 24, 64: 53}
"""Largest number of bits of a whole number in a float, by the float's width."""


def check_cast(dataset: lance.LanceDataset, column: str, kind: pa.DataType) -> None:
    """Checks a cast of a column, as far as schemas show.

    Raises:
        RegistrationError: The column is nested or a blob, the cast depends on a time zone or on a
            text format, no cast exists, or the values of the column's UDF do not all fit.
        UnsupportedTypeError: Lance cannot store the type.
    """
    if column not in dataset.schema.names:
        raise _make_error(
            dataset,
            f"Lance cannot change the type of {column!r} inside a column",
            "Add a column of the new type, fill it with UPDATE, drop the old column and rename the new one",
        )
    field = dataset.schema.field(column)
    if is_blob(field):
        raise _make_error(
            dataset, f"The blob column {column!r} cannot be cast", "Add a column of the new type"
        )
    check_storable(pa.schema([field.with_type(kind)]), dataset.data_storage_version)
    if reason := _session_dependence(field.type, kind):
        raise _make_error(
            dataset,
            f"The cast of column {column!r} from {field.type} to {kind} depends on {reason}",
            "Add a column of the new type, fill it with UPDATE .. SET new = CAST(old AS ..), drop the old column and "
            "rename the new one",
        )
    try:
        cast_values(pa.array([], field.type), kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _make_error(
            dataset,
            f"Column {column!r} cannot be cast from {field.type} to {kind}",
            "Choose another type",
        ) from error
    _check_binding(dataset, column, kind)


def cast_column(
    ref: DatasetRef,
    alteration: Mapping[str, Any],
    *,
    spark: Callable[[], SparkSession] | None = None,
) -> int:
    """Casts a column in one commit, and renames it or changes its nullability. Returns the version.

    Tasks of Spark write a data file per fragment of a large table, as a job in the history of the
    table. After a concurrent commit, only new and changed fragments are cast again. The field
    metadata stays: comment, encoding, UDF and any other key.

    Args:
        ref: The table.
        alteration: The column as `path`, with `data_type`, and maybe `name` and `nullable`.
        spark: Returns the session for a large table; None casts in this process.

    Raises:
        RegistrationError: The cast cannot work, or a value does not fit. Nothing was committed.
        CommitConflictError: Concurrent writers kept changing the table first.
    """
    from lance import LanceOperation

    column, pinned = alteration["path"], ref.pin(None)
    files, names, is_lost = CastFiles(ref, column, spark), set[str](), False

    def note_loss() -> None:
        nonlocal is_lost
        is_lost = True

    def replace_column(head: lance.LanceDataset) -> LanceOperation.BaseOperation:
        nonlocal is_lost
        check_cast(head, column, alteration["data_type"])
        field = _altered_field(head.schema.field(column), alteration)
        first_id = head.max_field_id + 1  # fields of dropped columns count
        new_files = files.write(head, field)
        await_record()
        names.clear()
        names.update(file.name for file in new_files.values())
        fragments = cast_fragments(head, new_files, field, first_id)
        files.staging.begin_commit()
        is_lost = False
        return LanceOperation.Merge(
            fragments, with_replaced_field(head.lance_schema, column, field, first_id)
        )

    versions: list[int] = []
    with files.recorded(pinned, versions) as await_record:
        files.staging.open_job()
        committed = commit_or_give_up(
            files.staging,
            pinned,
            lambda: change_schema(ref, replace_column, discard=note_loss),
            is_lost=lambda: is_lost,
        )
        versions.append(committed.version)
        finish(files.staging, pinned, names)
    return committed.version


def _altered_field(old: pa.Field[Any], alteration: Mapping[str, Any]) -> pa.Field[Any]:
    metadata: dict[bytes | str, bytes | str] = dict((old.metadata or {}).items())
    metadata.pop(_VIEW_EXPRESSION, None)
    field = (
        old.with_type(alteration["data_type"])
        .with_name(alteration.get("name") or old.name)
        .with_metadata(metadata)
    )
    nullable = alteration.get("nullable")
    return field if nullable is None else field.with_nullable(bool(nullable))


def _session_dependence(old: Kind, new: Kind) -> str | None:
    """Returns a cast's dependence on the session, at any depth; None for most casts."""
    reasons = (_leaf_dependence(old_leaf, new_leaf) for old_leaf, new_leaf in _leaf_pairs(old, new))
    return next(filter(None, reasons), None)


def _leaf_pairs(old: Kind, new: Kind) -> Iterator[tuple[Kind, Kind]]:
    """Yields the pairs of types below lists, maps and structs."""
    if is_list(old) and is_list(new):
        yield from _leaf_pairs(old.value_type, new.value_type)
    elif t.is_map(old) and t.is_map(new):
        yield from _leaf_pairs(old.key_type, new.key_type)
        yield from _leaf_pairs(old.item_type, new.item_type)
    elif t.is_struct(old) and t.is_struct(new):
        new_types = {field.name: field.type for field in new}
        for field in old:
            if field.name in new_types:
                yield from _leaf_pairs(field.type, new_types[field.name])
    else:
        yield old, new


def _leaf_dependence(old: Kind, new: Kind) -> str | None:
    if t.is_temporal(old) != t.is_temporal(new) and (t.is_integer(old) or t.is_integer(new)):
        return "the unit of the number, which is seconds in Spark and the unit of the type in Arrow"
    if (_is_instant(old) and _is_calendar(new)) or (_is_calendar(old) and _is_instant(new)):
        return "the time zone of the session"
    if is_text(new) and _has_spark_format(old):
        return "the text format of Spark"
    return None


def _is_instant(kind: Kind) -> bool:
    return t.is_timestamp(kind) and kind.tz is not None


def _is_calendar(kind: Kind) -> bool:
    return t.is_date(kind) or (t.is_timestamp(kind) and kind.tz is None)


def _has_spark_format(kind: Kind) -> bool:
    """Tells whether Spark and Arrow write the values of a type as different texts."""
    return (
        t.is_floating(kind) or t.is_decimal(kind) or (t.is_temporal(kind) and not t.is_date(kind))
    )


def _check_binding(dataset: lance.LanceDataset, column: str, kind: pa.DataType) -> None:
    """Refuses a cast if values of the column's UDF may not fit the new type.

    Raises:
        RegistrationError: Some values may not fit.
    """
    try:
        binding = binding_of(dataset, column)
    except StoredUdfError:  # damaged: backfills report the fault
        return
    dtype = value_type(dataset.schema.field(column))
    if binding is None or holds_all_values(dtype, kind):
        return
    raise _make_error(
        dataset,
        f"Column {column!r} is computed by UDF {binding.udf_name!r}, and {kind} does not hold every value of {dtype}",
        _explain_unbinding(binding, column),
    )


def _explain_unbinding(binding: Binding, column: str) -> str:
    if len(binding.columns) > 1:
        return "Drop the columns of the UDF, and add them with a UDF of the new type"
    return (
        f"Drop the UDF first with alter_columns({{'path': {column!r}, 'drop_udf': True}}), or compute the column anew "
        f"with alter_columns({{'path': {column!r}, 'udf': udf, 'recreate': True}})"
    )


def holds_all_values(source: Kind, target: Kind) -> bool:
    """Tells whether a type holds every value of another type; the cast is then lossless.

    Example:
        >>> import pyarrow as pa
        >>> from lance_spark.columns.casting import holds_all_values
        >>> holds_all_values(pa.int32(), pa.float64()), holds_all_values(pa.int64(), pa.float64())
        (True, False)
    """
    if source.equals(target):
        return True
    if t.is_integer(source):
        return _holds_integers(source, target)
    if t.is_floating(source):
        return bool(t.is_floating(target) and target.bit_width > source.bit_width)
    if t.is_decimal(source):
        return _holds_decimals(source, target)
    if t.is_struct(source):
        return _holds_structs(source, target)
    if is_list(source):
        return _holds_lists(source, target)
    return is_text(target) if is_text(source) else is_binary(source) and is_binary(target)


def _holds_integers(source: Kind, target: Kind) -> bool:
    bits = source.bit_width - t.is_signed_integer(source)
    if t.is_integer(target):
        signs = t.is_signed_integer(target) or t.is_unsigned_integer(source)
        return bool(signs and target.bit_width - t.is_signed_integer(target) >= bits)
    if t.is_floating(target):
        return bool(bits <= _FLOAT_DIGITS[target.bit_width])
    return bool(t.is_decimal(target) and 10 ** (target.precision - target.scale) > 2**bits)


def _holds_decimals(source: Kind, target: Kind) -> bool:
    if not t.is_decimal(target) or target.scale < source.scale:
        return False
    return bool(target.precision - target.scale >= source.precision - source.scale)


def _holds_structs(source: Kind, target: Kind) -> bool:
    if not t.is_struct(target) or source.names != target.names:
        return False
    return all(holds_all_values(a.type, b.type) for a, b in zip(source, target, strict=True))


def _holds_lists(source: Kind, target: Kind) -> bool:
    if not is_list(target) or not holds_all_values(source.value_type, target.value_type):
        return False
    if not t.is_fixed_size_list(target):
        return True
    return bool(t.is_fixed_size_list(source) and source.list_size == target.list_size)


def _make_error(dataset: lance.LanceDataset, problem: str, remedy: str) -> RegistrationError:
    return RegistrationError(f"{problem}. Nothing was changed in {dataset.uri}. {remedy}.")
