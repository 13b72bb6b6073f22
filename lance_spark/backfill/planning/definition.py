"""The source of a column's values: a stored UDF, a UDF of the call, or a join.

Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession

from lance_spark.backfill.planning.admission import Resources
from lance_spark.backfill.request import BackfillRequest
from lance_spark.backfill.task.messages import BackfillSpec, FragmentWork
from lance_spark.backfill.task.source_reader import TableInputs
from lance_spark.backfill.task.value_source import CallUdf, ValueSource
from lance_spark.columns.binding import (
    Binding,
    binding_of,
    in_stored_environment,
    inputs_now,
    load_udf,
    value_type,
)
from lance_spark.columns.checking import check_udf
from lance_spark.columns.pyspark_udfs import bind_to_columns, to_udf
from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.dataset import DatasetRef
from lance_spark.environments.artifacts import list_artifacts
from lance_spark.environments.stored import with_default
from lance_spark.errors import (
    ColumnNotFoundError,
    CommitImpossibleError,
    RegistrationError,
    StoredUdfError,
    UnsupportedOperationError,
)
from lance_spark.rows.row_set import RowSet
from lance_spark.storage.objects import objects_of_table
from udf_runtime import UDF
from udf_runtime.checkpoint import CheckpointKey
from udf_runtime.policies import ErrorPolicy, RateLimit

if TYPE_CHECKING:
    import lance


class Join(Protocol):
    """A join of a table's rows with the rows of another source, by keys."""

    def answers(
        self,
        spark: SparkSession,
        spec: BackfillSpec,
        todo: Mapping[int, RowSet],
        whole: Mapping[int, FragmentWork],
    ) -> DataFrame:
        """Returns a DataFrame that joins some rows, given by fragment.

        Its tasks write the matched values into checkpoints, or into the column files of `whole`
        fragments. Its rows list the matched rows of the table: columns `fragment_id` (bigint),
        `rows` (binary, of :meth:`RowSet.dumps`), and `outcome` (the encoded outcome of a file).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The source of the target columns. The job's spec has the same key, inputs and outputs.

    Attributes:
        job_type: Type of the job in the history.
        noun: Name of the job in messages.
        stored: The binding stored with the columns; None for a UDF of the call.
        input_source: Place of the inputs: the table, or the source of a view.
        loaded: The UDF. A plan does not load a stored UDF, and has None.
    """

    job_type: ClassVar[str] = "backfill"
    noun: ClassVar[str] = "backfill"

    stored: Binding | None
    loaded: UDF | None
    key: CheckpointKey
    inputs: tuple[FieldIdentity, ...]
    outputs: tuple[tuple[str, str], ...]
    input_source: TableInputs = field(default_factory=TableInputs)

    @property
    def join(self) -> Join | None:
        """The join with the values, if no UDF computes them."""
        return None

    @property
    def value_source(self) -> ValueSource:
        """The source of values for tasks. A plan runs no task."""
        return CallUdf(udf=b"") if self.loaded is None else CallUdf.of(self.loaded)

    @property
    def resources(self) -> Resources:
        """The resources of a task."""
        return self.udf

    @property
    def on_error(self) -> ErrorPolicy:
        """The policy for errors of rows. A load has none, and may skip any number of rows."""
        return ErrorPolicy() if self.loaded is None else self.loaded.on_error

    @property
    def rate_limit(self) -> RateLimit | None:
        """The calls per minute that the service of the UDF accepts; None: no limit."""
        return None if self.loaded is None else self.loaded.rate_limit

    @property
    def is_redefined(self) -> bool:
        """Whether the UDF replaced another UDF."""
        return self.stored is not None and self.stored.redefined > 0

    @property
    def origin(self) -> str:
        """The origin of the values, for commit messages."""
        return f"by UDF {self.key.udf_name}"

    @property
    def udf(self) -> UDF:
        """The UDF of a job.

        Raises:
            StoredUdfError: The definition belongs to a plan.
        """
        if self.loaded is None:
            raise StoredUdfError("A plan has no UDF to call. Prepare a job.")
        return self.loaded

    def release(self) -> None:
        """Deletes what the preparation of the job wrote for the job alone."""

    def refuse_changed(
        self, snapshot: DatasetRef, when: str, *, landed: lance.LanceDataset | None = None
    ) -> lance.LanceDataset | None:
        """Raises if the column has another UDF than at the start of the job.

        Looks at the version that a commit of the job has `landed`, or opens the latest version.
        Returns this version; None for a column without a stored UDF.

        Raises:
            CommitImpossibleError: The values of the job would be outdated.
        """
        before, column = self.stored, self.outputs[0][1]
        if before is None:
            return None
        head = snapshot.open_latest() if landed is None else landed
        try:
            latest = binding_of(head, column)
        except ColumnNotFoundError:
            return head  # the commit raises the error
        if latest is None or (latest.payload, latest.redefined) == (
            before.payload,
            before.redefined,
        ):
            return head
        old, new = (
            f"{binding.udf_name!r} version {binding.udf_version}" for binding in (before, latest)
        )
        change = (
            f"got another UDF {when}: {new} instead of {old}"
            if new != old
            else f"got its UDF anew {when}: {new}"
        )
        raise CommitImpossibleError(
            f"Column {column!r} of {snapshot.uri} has {change}. Nothing more is committed. Run the backfill again: it "
            "computes all rows with the UDF of the latest version.",
            uri=snapshot.uri,
        )


def definition_of(
    ref: DatasetRef, dataset: lance.LanceDataset, request: BackfillRequest
) -> Definition:
    """Returns the source of the columns of a request.

    Raises:
        ColumnNotFoundError, RegistrationError, UnsupportedOperationError: A column cannot be
            filled.
        StoredUdfError: The stored UDF cannot be used.
    """
    binding = _stored_binding(dataset, request)
    column = request.columns[0]
    if request.udf is None and binding is not None:
        return Definition(
            stored=binding,
            loaded=None if request.plan_only else load_udf(binding, objects_of_table(ref), column),
            key=binding.key,
            inputs=inputs_now(dataset, binding, column),
            outputs=binding.columns,
        )
    udf = to_udf(request.udf)
    if udf is None:
        raise RegistrationError(
            f"The argument udf must be a UDF, got {request.udf!r} for column {column!r}. Decorate a function with @udf."
        )
    outputs: tuple[tuple[str, str], ...]
    if binding is None:
        udf, outputs = with_default(udf, request.manifest), (("", column),)
    else:
        udf, outputs = in_stored_environment(udf, binding, column), binding.columns
    udf = bind_to_columns(udf, dataset.schema, request.time_zone)
    udf = udf if binding is None else binding.keep_version(udf)
    _check_outputs(udf, outputs, dataset)
    inputs = check_udf(dataset, udf, outputs)
    udf = list_artifacts(udf, ref).pickle_once()
    key = CheckpointKey(
        udf_name=udf.name,
        udf_version=udf.version,
        inputs=tuple(column.id for column in inputs),
        output_type=str(udf.data_type),
        environment=None if udf.manifest is None else udf.manifest.checksum,
    )
    return Definition(stored=None, loaded=udf, key=key, inputs=inputs, outputs=outputs)


def _stored_binding(dataset: lance.LanceDataset, request: BackfillRequest) -> Binding | None:
    """Returns the column's UDF, and checks that the request names the UDF's columns."""
    first = request.columns[0]
    if "." in first and first not in dataset.schema.names:
        raise UnsupportedOperationError(
            f"The field {first!r} inside a struct of {dataset.uri} cannot be filled by itself. Compute the whole "
            "struct, or a column of its own."
        )
    for column in request.columns:
        if column not in dataset.schema.names:
            hint = f"use add_columns to register it first; the columns are {', '.join(dataset.schema.names)}"
            raise ColumnNotFoundError(column, dataset.uri, hint=hint)
    binding = binding_of(dataset, first)
    group = {first} if binding is None else {column for _, column in binding.columns}
    if len(request.columns) > 1 and set(request.columns) != group:
        raise UnsupportedOperationError(
            f"Columns {', '.join(map(repr, request.columns))} of {dataset.uri} are not the columns of one UDF. Name "
            f"one of {', '.join(map(repr, sorted(group)))} to fill siblings together, or call backfill for each."
        )
    if binding is None and request.udf is None:
        raise RegistrationError(
            f"A backfill of {dataset.uri} calls a UDF, and no UDF is registered for column {first!r}. Pass a UDF with "
            "udf=, or register a UDF with alter_columns."
        )
    return binding


def _check_outputs(
    udf: UDF, outputs: tuple[tuple[str, str], ...], dataset: lance.LanceDataset
) -> None:
    """Refuses a UDF of the call whose output does not fit the columns."""
    fields = [output for output, _ in outputs]
    kinds: Any = udf.data_type
    if udf.is_columns != bool(fields[0]) or (
        udf.is_columns and {kind.name for kind in kinds} != set(fields)
    ):
        raise RegistrationError(
            f"UDF {udf.name!r} returns {udf.data_type}, which are not the columns "
            f"{', '.join(repr(column) for _, column in outputs)} of {dataset.uri}. Pass a UDF of the same output."
        )
    for output, column in outputs:
        kind = kinds.field(output).type if output else kinds
        if kind != value_type(dataset.schema.field(column)):
            raise RegistrationError(
                f"UDF {udf.name!r} returns {kind}, but column {column!r} is {dataset.schema.field(column).type}. "
                f"Table: {dataset.uri}. Give the UDF the data_type= of the column."
            )
