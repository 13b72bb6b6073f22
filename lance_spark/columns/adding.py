"""Adds columns: checks all columns, then adds them as NULL in a single commit, with their UDFs."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from lance_spark.columns.binding import Binding, metadata_of, store_udf
from lance_spark.columns.checking import check_new_names, check_udf, new_fields
from lance_spark.columns.pyspark_udfs import bind_to_columns, to_udf
from lance_spark.commit.conflicts.identity import TOKEN_KEY
from lance_spark.commit.schema_change import change_schema, drop_operation
from lance_spark.dataset import DatasetRef
from lance_spark.environments.artifacts import list_artifacts
from lance_spark.environments.stored import with_default
from lance_spark.errors import RegistrationError, panics_as_errors
from lance_spark.lance_compat import is_bad_value, plain
from lance_spark.session.sessions import session_time_zone
from udf_runtime import UDF, Manifest, UnpackedUDF

if TYPE_CHECKING:
    import lance

_FORMS = (
    '{"name": "SQL expression"}, {"name": udf}, {"name": (udf, ["input", ...])}, a UDF that returns Columns[T], or '
    'UnpackedUDF(udf, prefix="...")'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A UDF and its output columns: pairs of output field (empty: all) and column.

    An agent keeps the columns up to date if `auto_backfill` is true.
    """

    udf: UDF
    columns: tuple[tuple[str, str], ...]
    auto_backfill: bool = False

    @staticmethod
    def of(udf: UDF, columns: Iterable[tuple[str, str]]) -> Computed:
        """Returns the columns of a UDF, with its own choice of `auto_backfill`."""
        return Computed(udf=udf, columns=tuple(columns), auto_backfill=udf.auto_backfill)

    def settle(
        self,
        ref: DatasetRef,
        schema: pa.Schema,
        default: Manifest | None,
        time_zone: Callable[[], str],
    ) -> Computed:
        """Returns the columns with a settled UDF for a table.

        Args:
            ref: The table.
            schema: The columns of the table.
            default: The environment of a UDF without an environment.
            time_zone: As in :func:`bind_to_columns`.

        Raises:
            RegistrationError: As in :func:`bind_to_columns`.
            UdfDefinitionError: As in :func:`list_artifacts`.
        """
        udf = bind_to_columns(with_default(self.udf, default), schema, time_zone)
        return dataclasses.replace(self, udf=list_artifacts(udf, ref).pickle_once())


def add_columns(
    ref: DatasetRef,
    transforms: object,
    *,
    auto_backfill: bool | None = None,
    manifest: Manifest | None = None,
    time_zone: Callable[[], str] = session_time_zone,
) -> int:
    """Adds columns to a table, and returns the version with them. Runs on the driver.

    Columns of UDFs are added as NULL, in a commit without data. Lance computes columns of SQL
    expressions in the driver's process, as a stream.

    Args:
        ref: The table.
        transforms: Any of the five forms documented at :meth:`lance_spark.Table.add_columns`.
        auto_backfill: Whether an agent keeps the columns up to date; None asks their UDFs.
        manifest: The environment of UDFs without an environment.
        time_zone: Returns the time zone of the session, for UDFs of PySpark.

    Raises:
        RegistrationError: A UDF or an expression does not fit the table. Nothing was changed.
        ColumnExistsError: A column exists already. Nothing was changed.
        UnsupportedTypeError: Lance cannot store a column. Nothing was changed.
        CommitConflictError: Concurrent writers kept changing the table first.

    Warns:
        UserWarning: Types of inputs cannot be checked.
    """
    schema = _null_columns(transforms)
    sql, computed = ({}, []) if schema is not None else parse_transforms(transforms)
    if auto_backfill:
        _refuse_without_udf(ref, sql if schema is None else schema.names)
    if schema is not None:
        return _add_schema(ref, schema)
    dataset = ref.open_latest()
    computed = [
        column_group.settle(ref, dataset.schema, manifest, time_zone) for column_group in computed
    ]
    if auto_backfill is not None:
        computed = [dataclasses.replace(group, auto_backfill=auto_backfill) for group in computed]
    _check(dataset, sql, computed)
    for column_group in computed:
        store_udf(column_group.udf, ref)
    tokens = [uuid.uuid4().hex for _ in computed]
    if sql:
        version = _add_sql(ref, sql)
    try:
        if computed:
            version = change_schema(
                ref,
                lambda head: _add_null(head, computed, tokens),
                has_landed=lambda head: _has_tokens(head, computed, tokens),
                head=None if sql else dataset,
            ).version
    except BaseException:
        if sql:
            change_schema(ref, lambda head: drop_operation(head, list(sql)))
        raise
    return version


def _refuse_without_udf(ref: DatasetRef, names: Iterable[str]) -> None:
    """Refuses columns without a UDF, which no job keeps up to date.

    Raises:
        RegistrationError: A column has no UDF.
    """
    for name in names:
        raise RegistrationError(
            f"auto_backfill=True is for columns of UDFs, and column {name!r} has none. Table: {ref.uri}. Nothing was "
            "added. Add the column in a call without auto_backfill."
        )


def _null_columns(transforms: object) -> pa.Schema | None:
    """Returns the columns of an Arrow field, of a list of fields, or of a schema; else None."""
    if isinstance(transforms, pa.Field):
        return pa.schema([transforms])
    if isinstance(transforms, (list, tuple)) and all(
        isinstance(field, pa.Field) for field in transforms
    ):
        return pa.schema(list(transforms))
    return transforms if isinstance(transforms, pa.Schema) else None


def _add_schema(ref: DatasetRef, schema: pa.Schema) -> int:
    """Adds columns of NULL without a UDF."""
    required = [field.name for field in schema if not field.nullable]
    if required or not len(schema):
        raise RegistrationError(
            f"Column {required[0]!r} of {ref.uri} would be NULL, and may not be NULL. Nothing was added. Make the "
            "field nullable."
            if required
            else f"add_columns got no column to add. Give {_FORMS}."
        )

    def add(head: lance.LanceDataset) -> None:
        check_new_names(head, schema.names)
        head.add_columns(schema)

    return change_schema(
        ref, add, has_landed=lambda head: set(schema.names) <= set(head.schema.names)
    ).version


def parse_transforms(transforms: object) -> tuple[dict[str, str], list[Computed]]:
    """Sorts the forms of `transforms` into SQL expressions and UDFs. Pure.

    Raises:
        RegistrationError: `transforms` has none of the forms.
    """
    if isinstance(transforms, UnpackedUDF):
        return {}, [Computed.of(transforms.udf, transforms.output_columns)]
    if not isinstance(transforms, Mapping):
        udf = to_udf(transforms)
        if udf is None:
            raise RegistrationError(
                f"add_columns cannot make columns of {transforms!r}. Give {_FORMS}."
            )
        if not udf.is_columns:
            raise RegistrationError(
                f"UDF {udf.name!r} makes one column, and add_columns got no name for the column. Give "
                f"{{'name': {udf.name}}}. Only a UDF that returns Columns[T] needs no name."
            )
        return {}, [Computed.of(udf, UnpackedUDF(udf).output_columns)]
    if not transforms:
        raise RegistrationError(f"add_columns got no column to add. Give {_FORMS}.")
    sql: dict[str, str] = {}
    computed = []
    for name, value in transforms.items():
        if not isinstance(name, str) or not name:
            raise RegistrationError(f"{name!r} is no name of a column. Give add_columns {_FORMS}.")
        if isinstance(value, str):
            sql[name] = value
        else:
            computed.append(Computed.of(_to_column_udf(name, value), [("", name)]))
    return sql, computed


def _no_udf(name: str, value: object, function: object) -> RegistrationError:
    if not callable(function) or isinstance(function, UnpackedUDF):
        return RegistrationError(
            f"{value!r} cannot compute a column. Column: {name!r}. Give {_FORMS}."
        )
    function_name = getattr(function, "__name__", type(function).__name__)
    return RegistrationError(
        f"{function_name!r} is no UDF, so it cannot compute the column {name!r}. Decorate a function that has "
        "annotations with @udf."
    )


def _to_column_udf(name: str, value: object) -> UDF:
    """Returns the UDF of a column in a dict."""
    function, inputs, bound = (
        value,
        cast(Sequence[str], ()),
        isinstance(value, tuple) and len(value) == 2,
    )
    if bound:
        function, inputs = cast("tuple[object, Sequence[str]]", value)
    udf = None if isinstance(function, UnpackedUDF) else to_udf(function)
    if udf is None:
        raise _no_udf(name, value, function)
    if udf.is_columns:
        raise RegistrationError(
            f"UDF {udf.name!r} makes several columns, so it cannot be the value of one column. Column: {name!r}. Pass "
            f"the UDF by itself: add_columns({udf.name}), or add_columns(UnpackedUDF({udf.name}, prefix='...'))."
        )
    if not bound:
        return udf
    if not isinstance(inputs, (list, tuple)) or not all(
        isinstance(column, str) for column in inputs
    ):
        raise RegistrationError(
            f"{inputs!r} is no list of columns. Column: {name!r}. Give (udf, ['input', ...])."
        )
    return udf.with_input_columns(list(inputs))


def _check(
    dataset: lance.LanceDataset, sql: Mapping[str, str], computed: Sequence[Computed]
) -> None:
    names = [*sql, *(name for column_group in computed for _, name in column_group.columns)]
    check_new_names(dataset, names)
    for column_group in computed:
        check_udf(dataset, column_group.udf, column_group.columns)
        new_fields(dataset, column_group.udf, column_group.columns)
    for name, expression in sql.items():
        try:
            with panics_as_errors():
                # Lance plans no scan of constants only, such as `cast(null as string)`, without a
                # column.
                dataset.scanner(columns={name: expression}, with_row_address=True).explain_plan()
        except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
            raise RegistrationError(
                f"The expression {expression!r} is not valid: {error}. Column: {name!r} of {dataset.uri}. Nothing was "
                "added. Write Lance SQL over the table's columns."
            ) from error


def _add_sql(ref: DatasetRef, sql: Mapping[str, str]) -> int:
    def add(head: lance.LanceDataset) -> None:
        check_new_names(head, list(sql))
        try:
            with panics_as_errors():
                head.add_columns(dict(sql))
        except (ValueError, OSError, RuntimeError) as error:
            if isinstance(error, OSError) and not is_bad_value(error):
                raise  # a concurrent writer came first, or the store refused
            raise RegistrationError(
                f"An expression failed on the table's values: {plain(error)}. Columns: {', '.join(map(repr, sql))} of "
                f"{ref.uri}. Nothing was added. Correct the expression."
            ) from error

    return change_schema(
        ref, add, has_landed=lambda head: set(sql) <= set(head.schema.names)
    ).version


def _add_null(
    head: lance.LanceDataset, computed: Sequence[Computed], tokens: Sequence[str]
) -> None:
    """Adds all-NULL columns to this version, after checks for concurrent commits."""
    fields = []
    for column_group, token in zip(computed, tokens, strict=True):
        inputs = check_udf(head, column_group.udf, column_group.columns, warn=False)
        bound = Binding.of(column_group.udf, inputs, column_group.columns)
        binding = dataclasses.replace(
            bound, bound_at=head.version, auto_backfill=column_group.auto_backfill
        )
        for (output, _), field in zip(
            column_group.columns,
            new_fields(head, column_group.udf, column_group.columns),
            strict=True,
        ):
            metadata: dict[bytes | str, bytes | str] = dict((field.metadata or {}).items())
            metadata.update(metadata_of(binding, output, token).items())
            fields.append(field.with_metadata(metadata))
    head.add_columns(pa.schema(fields))


def _has_tokens(
    head: lance.LanceDataset, computed: Sequence[Computed], tokens: Sequence[str]
) -> bool:
    """Tells whether a version has the columns with the tokens."""
    fields = {field.name: field for field in head.schema}
    for column_group, token in zip(computed, tokens, strict=True):
        for _, name in column_group.columns:
            field = fields.get(name)
            if field is None or (field.metadata or {}).get(TOKEN_KEY) != token.encode():
                return False
    return True
