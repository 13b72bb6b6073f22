"""The call of a view's table function, in one task that reads the source and writes the result.

Runs on an executor. Memory: some batches, and the data of the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.environments.artifacts import TaskArtifacts
from lance_spark.environments.task import TaskEnvironment, open_interpreter
from lance_spark.errors import TableUnreadableError, panics_as_errors
from lance_spark.lance_compat import plain
from lance_spark.types.layout import aligned
from lance_spark.views.placement import PlacementSpec, RefreshTaskResult
from udf_runtime import UDF
from udf_runtime.execute import call_table

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRows:
    """The rows of a query at a version of its table, as input of a table function."""

    ref: DatasetRef
    columns: tuple[tuple[str, str], ...]
    where: str | None

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self._scanner().projected_schema

    def count_rows(self) -> int:
        """Returns the number of rows."""
        return self.ref.open().count_rows(self.where)

    def to_batches(self, *, batch_size: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yields the rows, in memory of some batches.

        Raises:
            TableUnreadableError: A file is missing or damaged.
        """
        try:
            with panics_as_errors():
                yield from self._scanner(batch_size).to_reader()
        except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
            hint = "a data file is missing or damaged, or the store refused: check the storage"
            raise TableUnreadableError(self.ref.uri, plain(error), hint=hint) from error

    def to_arrow(self) -> pa.Table:
        """Returns all rows at once."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is not imported for its type
        """Returns all rows at once, as a data frame."""
        return self.to_arrow().to_pandas()

    def _scanner(self, batch_size: int | None = None) -> lance.LanceScanner:
        dataset = self.ref.open()
        return dataset.scanner(columns=dict(self.columns), filter=self.where, batch_size=batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCall:
    """A task that calls a table function.

    Attributes:
        spec: The common data of the tasks of the refresh.
        udf: The pickled function.
        source: The input.
        columns: Names of the columns in the result of the function, and in the view.
        environment: The environment of the function; None is the executors' own Python.
        artifacts: The way to the artifacts of the function; None without artifacts.
    """

    spec: PlacementSpec
    udf: bytes
    source: QueryRows
    columns: tuple[tuple[str, str], ...]
    environment: TaskEnvironment | None
    artifacts: TaskArtifacts | None

    def run(self) -> RefreshTaskResult:
        """Calls the function, and writes the rows of the view. Runs on an executor."""
        result, schema = RefreshTaskResult(), self.spec.placed.row_schema
        names = {column: name for name, column in self.columns}
        udf = UDF.loads(self.udf)
        interpreter = open_interpreter(udf, self.environment, self.artifacts)
        with self.spec.write_fragments(self.spec.placed, result) as sink:
            for function_result in call_table(udf, self.source, interpreter):
                arrays = [
                    aligned(_as(function_result.column(names[field.name]), field.type))
                    for field in schema
                ]
                sink.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
                result.added += function_result.num_rows
        return result


def _as(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    cast: pa.Array[Any] = array if array.type == kind else array.cast(kind)
    return cast
