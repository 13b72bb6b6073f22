"""Changes columns: gives them another UDF, name or type, or drops them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from lance_spark.columns.adding import add_columns
from lance_spark.columns.binding import (
    Binding,
    binding_of,
    output_fields,
    store_udf,
    value_type,
)
from lance_spark.columns.casting import cast_column, check_cast
from lance_spark.columns.checking import check_udf
from lance_spark.columns.pyspark_udfs import bind_to_columns, to_udf
from lance_spark.commit.conflicts.identity import BINDING_KEY, OUTPUT_KEY, TOKEN_KEY
from lance_spark.commit.schema_change import change_schema, drop_operation, set_field_metadata
from lance_spark.dataset import DatasetRef
from lance_spark.environments.artifacts import list_artifacts
from lance_spark.environments.stored import with_default
from lance_spark.errors import (
    ColumnExistsError,
    ColumnNotFoundError,
    RegistrationError,
    SchemaMismatchError,
    StoredUdfError,
    panics_as_errors,
)
from lance_spark.lance_compat import arrow_field_of, is_bad_request, is_bad_value, plain
from lance_spark.session.sessions import session_time_zone
from lance_spark.types import check_storable
from lance_spark.types.fields import check_column_names, check_field_name
from udf_runtime import UDF, Manifest

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from pyspark.sql import SparkSession

_LANCE_KEYS = frozenset({"path", "name", "nullable", "data_type"})
_OUR_KEYS = frozenset({"path", "udf", "input_columns", "recreate", "auto_backfill"})
_UNBINDING_KEYS = frozenset({"path", "drop_udf"})
_AUTOMATION_KEYS = frozenset({"path", "auto_backfill"})


def alter_columns(
    ref: DatasetRef,
    alterations: Sequence[Mapping[str, object]],
    *,
    manifest: Manifest | None = None,
    time_zone: Callable[[], str] = session_time_zone,
    spark: Callable[[], SparkSession] | None = None,
) -> int:
    """Alters columns, as documented at :meth:`lance_spark.Table.alter_columns`.

    All alterations are checked before the first change. UDFs without a manifest get `manifest`.
    UDFs of PySpark get the time zone of the session. `spark` returns the session for casts of large
    tables; without a session, this process casts. Returns the version with all changes.

    Raises:
        RegistrationError: An alteration is not valid.
        ColumnNotFoundError: A column does not exist.
        CommitConflictError: Concurrent writers kept changing the table first.
    """
    dataset = ref.open_latest()
    alterations = [_with_name(alteration) for alteration in alterations]
    checked = [
        (alteration, _check(ref, dataset, alteration, manifest, time_zone))
        for alteration in alterations
    ]
    if not checked:
        raise RegistrationError(
            "alter_columns got nothing to alter. Give {'path': column, 'udf': udf}, ..."
        )
    paths = [str(alteration["path"]) for alteration in alterations]
    if len(set(paths)) < len(paths):
        raise RegistrationError(
            "alter_columns got a column twice. Nothing was changed. Alter the column in two calls."
        )
    # Order: casts first (may fail on data), renames last (other alterations use the old names).
    for alteration, udf in sorted(
        checked, key=lambda pair: (pair[1] is not None) + 2 * _only_renames(pair[0])
    ):
        version = _apply(ref, dataset, alteration, udf, spark)
    return version


def _with_name(alteration: Mapping[str, object]) -> Mapping[str, object]:
    """Returns an alteration with `name` for LanceDB's `rename`."""
    if not isinstance(alteration, Mapping) or "rename" not in alteration or "name" in alteration:
        return alteration
    return {("name" if key == "rename" else key): value for key, value in alteration.items()}


def _apply(
    ref: DatasetRef,
    dataset: lance.LanceDataset,
    alteration: Mapping[str, object],
    udf: UDF | None,
    spark: Callable[[], SparkSession] | None,
) -> int:
    column = str(alteration["path"])
    if alteration.get("data_type") is not None:
        return cast_column(ref, alteration, spark=spark)
    if alteration.get("drop_udf"):
        return change_schema(ref, lambda head: _unbind(head, column)).version
    auto_backfill = cast("bool | None", alteration.get("auto_backfill"))
    if udf is None and auto_backfill is not None:
        is_kept = auto_backfill
        return change_schema(ref, lambda head: _set_auto_backfill(head, column, is_kept)).version
    if udf is None:
        return _alter_in_place(ref, dataset, alteration).version
    if alteration.get("recreate"):
        auto_backfill = _choose_automation(_intact_binding(dataset, column), udf, auto_backfill)
        change_schema(ref, lambda head: drop_operation(head, [column]))
        return add_columns(ref, {column: udf}, auto_backfill=auto_backfill)
    store_udf(udf, ref)
    return change_schema(ref, lambda head: _rebind(head, column, udf, auto_backfill)).version


def drop_columns(ref: DatasetRef, columns: Sequence[str]) -> int:
    """Drops columns, and returns the version without them.

    Raises:
        ColumnNotFoundError: A column does not exist. No column was dropped.
        SchemaMismatchError: The table would have no column left. No column was dropped.
    """

    def drop(head: lance.LanceDataset) -> LanceOperation.BaseOperation:
        names = head.schema.names
        absent = next((column for column in columns if column not in names), None)
        if absent is not None:
            hint = f"its columns are {', '.join(names)}; nothing was dropped"
            raise ColumnNotFoundError(absent, ref.uri, hint=hint)
        if set(columns) == set(names):
            raise SchemaMismatchError(
                f"A table needs at least one column, and the call would drop all columns. Table: {ref.uri}. Nothing "
                "was dropped. Add another column first, or drop the table."
            )
        return drop_operation(head, columns)

    return change_schema(ref, drop).version


def _check(
    ref: DatasetRef,
    dataset: lance.LanceDataset,
    alteration: Mapping[str, object],
    manifest: Manifest | None,
    time_zone: Callable[[], str],
) -> UDF | None:
    """Checks an alteration, and returns its UDF, or None."""
    path = _check_form(alteration)
    if "auto_backfill" in alteration:
        _check_automation(dataset, path, alteration)
    if alteration.keys() == _AUTOMATION_KEYS:
        return None
    if "drop_udf" in alteration:
        _check_unbinding(dataset, path, alteration["drop_udf"])
        return None
    if "udf" not in alteration:
        _check_plain(dataset, path, alteration)
        return None
    _check_exists(dataset, path)
    udf = with_default(_requested_udf(alteration, path), manifest)
    udf = bind_to_columns(udf, dataset.schema, time_zone)
    _check_udf(dataset, path, udf, recreate=bool(alteration.get("recreate")))
    return _settle_version(dataset, list_artifacts(udf, ref), path)


def _check_form(alteration: Mapping[str, object]) -> str:
    """Checks the keys of an alteration, and returns its path."""
    if not isinstance(alteration, Mapping):
        raise RegistrationError(
            f"{alteration!r} is no alteration. Give alter_columns {{'path': column, 'udf': udf}}."
        )
    if "virtual_column" in alteration:
        raise RegistrationError("alter_columns no longer takes 'virtual_column'. Write 'udf'.")
    path = alteration.get("path")
    if not isinstance(path, str) or not path:
        raise RegistrationError(
            f"alter_columns requires path, the name of a column. Alteration: {dict(alteration)!r}. Add the path."
        )
    forms = (("udf", _OUR_KEYS), ("drop_udf", _UNBINDING_KEYS), ("auto_backfill", _AUTOMATION_KEYS))
    allowed = next((keys for key, keys in forms if key in alteration), _LANCE_KEYS)
    unknown = sorted(set(alteration) - allowed)
    if unknown:
        raise RegistrationError(
            f"alter_columns cannot alter {', '.join(map(repr, unknown))}. Column: {path!r}. Give path with udf (and "
            "input_columns, recreate, auto_backfill), with name, nullable, data_type, with drop_udf, or with "
            "auto_backfill."
        )
    return path


def _check_exists(dataset: lance.LanceDataset, path: str) -> None:
    if path not in dataset.schema.names:
        raise ColumnNotFoundError(
            path, dataset.uri, hint=f"its columns are {', '.join(dataset.schema.names)}"
        )


def _requested_udf(alteration: Mapping[str, object], path: str) -> UDF:
    """Returns the UDF of an alteration, over the input columns of the alteration."""
    udf = to_udf(alteration["udf"])
    if udf is None:
        raise RegistrationError(
            f"udf must be a UDF, got {alteration['udf']!r}. Column: {path!r}. Decorate a function with @udf."
        )
    inputs = alteration.get("input_columns")
    return udf if inputs is None else udf.with_input_columns(list(inputs))  # type: ignore[call-overload]


def _check_udf(dataset: lance.LanceDataset, path: str, udf: UDF, *, recreate: bool) -> None:
    """Checks that a UDF can replace the UDF of a column."""
    if udf.is_columns or OUTPUT_KEY.encode() in (dataset.schema.field(path).metadata or {}):
        raise RegistrationError(
            f"Columns of a UDF that returns Columns[T] cannot get another UDF one by one. Column: {path!r}. Drop the "
            "columns, and add them again."
        )
    dtype = value_type(dataset.schema.field(path))
    if dtype != udf.data_type and not recreate:
        raise RegistrationError(
            f"UDF {udf.name!r} returns {udf.data_type}, but column {path!r} is {dtype}. Table: {dataset.uri}. Give "
            f"the UDF data_type={dtype}, or pass 'recreate': True to drop the column with all its values and add it "
            "again."
        )
    check_udf(dataset, udf, (("", path),))
    if recreate:
        fields = output_fields(udf, (("", path),), dataset.data_storage_version)
        check_storable(pa.schema(fields), dataset.data_storage_version)


def _settle_version(dataset: lance.LanceDataset, udf: UDF, column: str) -> UDF:
    """Returns the UDF as stored; an unchanged UDF keeps the column's UDF version."""
    binding = _intact_binding(dataset, column)
    return (udf if binding is None else binding.keep_version(udf)).pickle_once()


def _check_unbinding(dataset: lance.LanceDataset, path: str, drop: object) -> None:
    if drop is not True:
        raise RegistrationError(
            f"drop_udf is {drop!r}. Column {path!r} of {dataset.uri} was not changed. Pass True."
        )
    _check_exists(dataset, path)
    if BINDING_KEY.encode() not in (dataset.schema.field(path).metadata or {}):
        raise RegistrationError(
            f"Column {path!r} of {dataset.uri} has no UDF. Nothing was changed. Name another column."
        )


def _check_automation(
    dataset: lance.LanceDataset, path: str, alteration: Mapping[str, object]
) -> None:
    """Checks the value of `auto_backfill`, and the UDF of the column unless the column gets one."""
    value = alteration["auto_backfill"]
    if not isinstance(value, bool):
        raise RegistrationError(
            f"auto_backfill is {value!r}. Column {path!r} of {dataset.uri} was not changed. Pass True or False."
        )
    if "udf" in alteration:
        return
    binding = binding_of(dataset, path)
    if binding is None or binding.of_source:
        way = (
            "has no UDF"
            if binding is None
            else "belongs to the query of a view, which alter_view(auto_refresh=) sets"
        )
        raise RegistrationError(
            f"Column {path!r} of {dataset.uri} {way}. Nothing was changed. Name another column."
        )


def _only_renames(alteration: Mapping[str, object]) -> bool:
    return alteration.keys().isdisjoint({"udf", "data_type", "drop_udf", "auto_backfill"})


def _check_plain(dataset: lance.LanceDataset, path: str, alteration: Mapping[str, object]) -> None:
    """Checks an alteration for Lance, as far as schemas show."""
    names = dataset.schema.names
    if path.partition(".")[0] not in names:
        raise ColumnNotFoundError(
            path, dataset.uri, hint=f"its columns are {', '.join(names)}; nothing was changed"
        )
    name, kind = alteration.get("name"), alteration.get("data_type")
    if name is None and kind is None and alteration.get("nullable") is None:
        raise RegistrationError(
            f"The alteration changes nothing. Column: {path!r}. Give udf, name, nullable or data_type."
        )
    if name is not None:
        _check_new_name(dataset, path, name)
    if kind is not None and not isinstance(kind, pa.DataType):
        raise RegistrationError(
            f"data_type={kind!r} is no Arrow type. Column: {path!r}. Give a type such as pa.int32()."
        )
    if kind is not None:
        check_cast(dataset, path, kind)


def _check_new_name(dataset: lance.LanceDataset, path: str, name: object) -> None:
    """Checks the new name of a column, or of a field in a struct."""
    if not isinstance(name, str):
        raise RegistrationError(
            f"name={name!r} is no text. Column {path!r} of {dataset.uri} was not changed. Pass text."
        )
    if path not in dataset.schema.names:
        check_field_name(name, path.rpartition(".")[0], dataset.uri)
        return
    if name.lower() in (column.lower() for column in dataset.schema.names if column != path):
        raise ColumnExistsError(
            [name], dataset.uri, hint="choose another name; nothing was changed"
        )
    check_column_names([name], dataset.uri)


def _alter_in_place(
    ref: DatasetRef, dataset: lance.LanceDataset, alteration: Mapping[str, object]
) -> lance.LanceDataset:
    """Renames a column, or changes its nullability. Lance makes the commit."""
    path = str(alteration["path"])
    field = dataset.lance_schema.field(path)
    new_path = (
        ".".join([*path.split(".")[:-1], str(alteration["name"])])
        if alteration.get("name")
        else path
    )

    def has_landed(head: lance.LanceDataset) -> bool:
        new = head.lance_schema.field(new_path)
        if new is None or field is None or new.id() != field.id():
            return False
        return alteration.get("nullable") in (None, arrow_field_of(new).nullable)

    return change_schema(ref, lambda head: _alter(head, alteration), has_landed=has_landed)


def _alter(head: lance.LanceDataset, alteration: Mapping[str, object]) -> None:
    try:
        with panics_as_errors():
            head.alter_columns(dict(alteration, path=_quote_path(head, str(alteration["path"]))))  # type: ignore[arg-type]
    except (ValueError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and not (is_bad_value(error) or is_bad_request(error)):
            raise  # a concurrent writer came first, or the store refused
        raise RegistrationError(
            f"Lance cannot alter the column: {plain(error)}. Column: {alteration['path']!r} of {head.uri}. Nothing "
            "was changed."
        ) from error


def _quote_path(head: lance.LanceDataset, path: str) -> str:
    """Returns a path for Lance: a name with a backtick is quoted."""
    is_quoted = "`" in path and path in head.schema.names
    return f"`{path.replace('`', '``')}`" if is_quoted else path


def _unbind(head: lance.LanceDataset, column: str) -> LanceOperation.BaseOperation:
    """Returns the operation that removes the UDF of a column and of its siblings."""
    group = _find_group(head, column)
    return set_field_metadata(head, {name: {BINDING_KEY: None, OUTPUT_KEY: None} for name in group})


def _find_group(head: lance.LanceDataset, column: str) -> set[str]:
    """Returns the names of a column and of its siblings."""
    metadata = {field.name: field.metadata or {} for field in head.schema}
    token = metadata[column].get(TOKEN_KEY)
    return {
        column,
        *(
            name
            for name, keys in metadata.items()
            if token is not None and keys.get(TOKEN_KEY) == token
        ),
    }


def _set_auto_backfill(
    head: lance.LanceDataset, column: str, value: bool
) -> LanceOperation.BaseOperation | None:
    """Returns the operation that sets `auto_backfill` of a column and of its siblings."""
    updates: dict[str, dict[str, str | None]] = {}
    for name in _find_group(head, column) if column in head.schema.names else [column]:
        binding = binding_of(head, name)
        if binding is None:
            raise RegistrationError(
                f"A concurrent writer removed the UDF of column {name!r} of {head.uri}. Nothing was changed."
            )
        if binding.auto_backfill != value:
            updates[name] = {
                BINDING_KEY: dataclasses.replace(binding, auto_backfill=value).to_json()
            }
    return set_field_metadata(head, updates) if updates else None


def _intact_binding(head: lance.LanceDataset, column: str) -> Binding | None:
    """Returns the binding of a column; None for a damaged binding, whose remedy is a new UDF."""
    try:
        return binding_of(head, column)
    except StoredUdfError:
        return None


def _choose_automation(before: Binding | None, udf: UDF, choice: bool | None) -> bool:
    """Returns `auto_backfill` of a column with a new UDF. By default it stays."""
    if choice is not None:
        return choice
    return udf.auto_backfill or (before is not None and before.auto_backfill)


def _rebind(
    head: lance.LanceDataset, column: str, udf: UDF, auto_backfill: bool | None
) -> LanceOperation.BaseOperation:
    """Returns the operation that replaces the UDF of a column."""
    before = _intact_binding(head, column)
    dtype = value_type(head.schema.field(column))
    if dtype != udf.data_type:
        raise RegistrationError(
            f"UDF {udf.name!r} returns {udf.data_type}, and a concurrent writer made column {column!r} {dtype}. "
            f"Table: {head.uri}. Nothing was changed. Give the UDF data_type={dtype}."
        )
    inputs = check_udf(head, udf, (("", column),), warn=False)
    # Existing values, of another UDF or written manually, are out of date from now on.
    redefined = 1 if before is None else before.redefined + 1
    bound = Binding.of(udf, inputs, (("", column),))
    auto_backfill = _choose_automation(before, udf, auto_backfill)
    binding = dataclasses.replace(
        bound, redefined=redefined, bound_at=head.version, auto_backfill=auto_backfill
    )
    updates: dict[str, str | None] = {BINDING_KEY: binding.to_json()}
    if TOKEN_KEY not in (head.schema.field(column).metadata or {}):
        updates[TOKEN_KEY.decode()] = uuid.uuid4().hex
    return set_field_metadata(head, {column: updates})
