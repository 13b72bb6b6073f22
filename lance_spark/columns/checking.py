"""Checks that a UDF fits a table's schema: types of its inputs, and storage of its outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.columns.binding import output_fields, record_batch_inputs, takes_record_batch
from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.display import warn_caller
from lance_spark.errors import ColumnExistsError, RegistrationError
from lance_spark.types import check_storable
from lance_spark.types.fields import Kind, check_column_names, is_blob, is_list, is_text
from udf_runtime import UDF

if TYPE_CHECKING:
    import lance

    from udf_runtime.definition import Parameter

_CHECKED_FORMS = ("blob", "list", "numpy")
"""Forms of parameters that show the type of a column without an annotated type."""


def check_udf(
    dataset: lance.LanceDataset, udf: UDF, columns: Sequence[tuple[str, str]], *, warn: bool = True
) -> tuple[FieldIdentity, ...]:
    """Checks that a UDF can compute columns of a table; returns its inputs by parameter.

    Args:
        dataset: The table.
        udf: The UDF.
        columns: Pairs of output field and column.
        warn: Whether to warn of inputs without a check.

    Raises:
        RegistrationError: An input is missing or of another type, or an output is among the inputs.

    Warns:
        UserWarning: Types of inputs cannot be checked, because parameters have no annotations.
    """
    outputs = [name for _, name in columns]
    if takes_record_batch(udf):
        return record_batch_inputs(dataset, outputs)
    identities = {column.name: column for column in field_identities(dataset.lance_schema)}
    names = udf.input_columns or ()
    _check_names(dataset, udf, names, outputs)
    unchecked = _check_types(dataset, udf, names)
    if unchecked and warn:
        warn_caller(
            f"the types of {', '.join(map(repr, unchecked))} of UDF {udf.name!r} are not checked: "
            "these parameters have no annotations",
            UserWarning,
        )
    return tuple(identities[name] for name in names)


def _check_names(
    dataset: lance.LanceDataset, udf: UDF, names: Sequence[str], outputs: Sequence[str]
) -> None:
    """Checks that the inputs of a UDF are other columns of the table."""
    if not names:
        raise RegistrationError(
            f"UDF {udf.name!r} reads no column. Table: {dataset.uri}. Give the UDF a parameter: a value without "
            "inputs is the same in every row."
        )
    present = [column.name for column in field_identities(dataset.lance_schema)]
    absent = [name for name in names if name not in present]
    if absent:
        raise RegistrationError(
            f"UDF {udf.name!r} reads columns that the table lacks: {', '.join(map(repr, absent))}. Table: "
            f"{dataset.uri}, with the columns {', '.join(map(repr, present))}. Name the UDF's parameters like "
            "columns, or bind the UDF with (udf, ['column', ...])."
        )
    own = [name for name in names if name in outputs]
    if own:
        raise RegistrationError(
            f"Output column {own[0]!r} is among the inputs of UDF {udf.name!r}. Table: {dataset.uri}. Compute the "
            "values into another column."
        )


def _check_types(dataset: lance.LanceDataset, udf: UDF, names: Sequence[str]) -> list[str]:
    """Compares annotations with columns, and returns the parameters without annotation."""
    unchecked = []
    table = dataset.schema
    for parameter, name in zip(udf.parameters, names, strict=False):
        field = table.field(name)
        if not _takes(parameter, field):
            raise RegistrationError(
                f"Type mismatch: parameter {parameter.name!r} of UDF {udf.name!r} takes {_describe_type(parameter)}, "
                f"but column {field.name!r} is {field.type}. Table: {dataset.uri}. Correct the annotation, or bind "
                "another column with (udf, ['column', ...])."
            )
        if (
            parameter.type is None
            and parameter.form not in _CHECKED_FORMS
            and udf.kind.name == "SCALAR"
        ):
            unchecked.append(parameter.name)
    return unchecked


def _takes(parameter: Parameter, field: pa.Field[Any]) -> bool:
    """Tells whether a parameter takes the values of a column, as far as its annotation shows."""
    if parameter.form == "blob":
        return is_blob(field) or _is_binary(field.type)
    if parameter.type is not None:
        return _fits(parameter.type, field)
    return parameter.form not in _CHECKED_FORMS or is_list(field.type)


def _describe_type(parameter: Parameter) -> str:
    if parameter.form == "blob":
        return "a blob"
    return "a list" if parameter.type is None else str(parameter.type)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


_FAMILIES = (
    pa.types.is_integer,
    pa.types.is_floating,
    is_text,
    _is_binary,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
    pa.types.is_decimal,
    pa.types.is_struct,
    pa.types.is_map,
)
"""Families of types: an annotation takes columns of its own family."""


def _fits(annotated: Kind, field: pa.Field[Any]) -> bool:
    """Tells whether values of a column are of an annotation's type."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_blob(field):
        return _is_binary(annotated)
    if kind == annotated:
        return True
    if is_list(annotated) and is_list(kind):
        return _fits(annotated.value_type, pa.field("element", kind.value_type))
    return _are_alike(annotated, kind) or (
        pa.types.is_floating(annotated) and pa.types.is_integer(kind)
    )


def _are_alike(annotated: Kind, kind: Kind) -> bool:
    return any(is_member(annotated) and is_member(kind) for is_member in _FAMILIES)


def new_fields(
    dataset: lance.LanceDataset, udf: UDF, columns: Sequence[tuple[str, str]]
) -> list[pa.Field[Any]]:
    """Returns the Arrow fields of new columns of a UDF.

    Raises:
        ColumnExistsError: A column exists already.
        RegistrationError: Two columns have the same name.
        UnsupportedTypeError, SchemaMismatchError: Lance cannot store the columns.
    """
    names = [name for _, name in columns]
    check_new_names(dataset, names)
    fields = output_fields(udf, columns, dataset.data_storage_version)
    check_storable(pa.schema(fields), dataset.data_storage_version)
    return fields


def check_new_names(dataset: lance.LanceDataset, names: Sequence[str]) -> None:
    """Checks that names are free.

    Raises:
        ColumnExistsError: A name is taken, in any case: Spark ignores the case of names.
        RegistrationError: Two names are the same, or a name is a path into a struct.
        ColumnNameError: Lance or Spark could not read a column of this name back.
    """
    present = {name.lower() for name in dataset.schema.names}
    existing = [name for name in names if name.lower() in present]
    if existing:
        raise ColumnExistsError(
            existing,
            dataset.uri,
            hint="choose another name; alter_columns gives it another UDF, drop_columns removes it; nothing was added",
        )
    repeated = _find_repeated(names)
    if repeated is not None:
        raise RegistrationError(
            f"Two new columns have the name {repeated!r}. Table: {dataset.uri}. Nothing was added. Choose two names."
        )
    nested = [name for name in names if "." in name]
    if nested:
        raise RegistrationError(
            f"Column {nested[0]!r} would be a field inside a struct, and a UDF cannot compute a field alone. Table: "
            f"{dataset.uri}. Compute the whole struct, or a column of its own."
        )
    check_column_names(names, dataset.uri)


def _find_repeated(names: Sequence[str]) -> str | None:
    """Returns the first name that another name repeats in any case, or None."""
    counts = Counter(name.lower() for name in names)
    return next((name for name in names if counts[name.lower()] > 1), None)
