"""Chunkers and table functions as table functions of Spark, for SQL and DataFrames."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lance_spark.arguments import ARGUMENTS
from lance_spark.errors import RegistrationError
from lance_spark.jvm.gateway import is_classic
from lance_spark.session.sessions import session_or_local
from lance_spark.types.mapping import spark_arrow_schema
from lance_spark.types.schemas import to_spark_schema
from udf_runtime import UDF, Kind, as_udf
from udf_runtime.arguments import show_value
from udf_runtime.checkpoint import LocalObjects
from udf_runtime.checkpoint.chunks import ChunkFolder, ChunkReader
from udf_runtime.definition import UdfFactory
from udf_runtime.definition.parameter_values import value_reader
from udf_runtime.errors import UdfRuntimeError
from udf_runtime.execute import ChunkPieces, UdfRunner, call_table
from udf_runtime.execute.result import cause_of, raised_for

if TYPE_CHECKING:
    from pyspark.sql.udtf import UserDefinedTableFunction

    from udf_runtime.definition import Parameter

_READ_ROWS = 8192
_READ_BYTES = 8 << 20
_TABLE_ROWS = 10_000


@ARGUMENTS.function
def table_function(
    function: UDF | UdfFactory, *, name: str | None = None, spark: SparkSession | None = None
) -> UserDefinedTableFunction:
    """Converts a chunker or a table function to a table function of Spark. Runs on the driver.

    A chunker is joined laterally: `SELECT * FROM docs, LATERAL chunk(docs.text)`, or
    `docs.lateralJoin(chunk(sf.col("text").outer()))`. Its arguments are the function's, by position
    or by name. A row skipped by its policy has no chunks. A table function gets a table: `SELECT *
    FROM totals(TABLE(docs))`, or `totals(docs.asTable())`. A Python process on an executor holds
    all rows of the table.

    Args:
        function: Decorated with `@chunker` or `@udtf`.
        name: Name for SQL; by default the function is not registered for SQL.
        spark: The session, classic or over Connect; by default the active session.

    Returns:
        The result of Spark's `udtf`, for DataFrames.

    Raises:
        RegistrationError: The function is neither, or has an environment of its own.

    Example:
        >>> @chunker(output_schema=pa.schema([("word", pa.string())]))
        ... def words(text: str):
        ...     yield from ((word,) for word in text.split())
        >>> table_function(words, name="words", spark=spark)
        >>> spark.sql("SELECT id, w.word FROM docs, LATERAL words(docs.text) AS w")
    """
    udf = as_udf(function)
    if udf is None or not udf.kind.makes_rows:
        raise RegistrationError(
            f"{show_value(function)} makes no rows, so table_function cannot use it. Decorate a function with "
            "@chunker or @udtf."
        )
    if udf.manifest is not None:
        raise RegistrationError(
            f"{udf.name!r} has manifest {udf.manifest.name!r}, but a table function of Spark runs in the executors' "
            "own Python. Make a view of the function with create_udtf_view, or give all of Spark's Python processes "
            "the packages with spark.archives."
        )
    if udf.artifacts:
        raise RegistrationError(
            f"{udf.name!r} has artifacts, but Spark copies no artifacts for a table function. Make a view of the "
            "function with create_udtf_view."
        )
    session = session_or_local(spark)
    create: Callable[..., Any]
    if is_classic(session):
        from pyspark.sql.udtf import _create_py_udtf as create
    else:
        from pyspark.sql.connect.udtf import _create_py_udtf as create
    fields: Any = udf.data_type
    schema = to_spark_schema(pa.schema(list(fields)))
    if udf.kind is Kind.CHUNKS:
        spark_function = create(cls=_chunk_handler(udf.dumps()), returnType=schema, useArrow=False)
    else:
        spark_function = create(
            cls=_table_handler(udf.dumps(), schema), returnType=None, useArrow=False
        )
    if name is not None:
        session.udtf.register(name, spark_function)
    result: UserDefinedTableFunction = spark_function
    return result


def _chunk_handler(payload: bytes) -> type:
    class Chunks:
        """The class called by Spark for each row."""

        def __init__(self) -> None:
            self._calls = ChunkRows(UDF.loads(payload))

        def eval(self, *args: object, **kwargs: object) -> Iterator[tuple[object, ...]]:
            yield from self._calls.of_row(args, kwargs)

    return Chunks


class ChunkRows:
    """Calls a chunker for rows of Spark. Belongs to a single task.

    With an error policy, the chunks of a row are written to this machine's disk before the first
    chunk is returned: a skipped row has none.
    """

    def __init__(self, udf: UDF) -> None:
        self._udf = udf
        self._pieces = ChunkPieces(udf)
        fields: Any = udf.data_type
        self._schema = pa.schema(list(fields))

    def of_row(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[tuple[object, ...]]:
        """Yields the chunks of a row, as Python values."""
        values = self._bind(args, kwargs)
        if self._udf.on_error.matchers:
            yield from self._run_with_policy(values)
            return
        arguments = [
            _convert_argument(values[parameter.name], parameter)
            for parameter in self._udf.parameters
        ]
        try:
            for piece in self._pieces.of_row(*arguments):
                yield from _to_tuples(piece)
        except UdfRuntimeError:
            raise
        except Exception as error:  # noqa: BLE001 - a worker of Spark cannot report every text
            raise raised_for(error, udf=self._udf.name, row=None) from cause_of(error)

    def _bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """Returns the arguments of a call, by name in the order of the parameters."""
        names = [parameter.name for parameter in self._udf.parameters]
        values = dict(zip(names, args, strict=False)) | kwargs
        if len(args) + len(kwargs) != len(names) or values.keys() != set(names):
            received = f"{len(args)} by position" + (f" and {', '.join(kwargs)}" if kwargs else "")
            raise TypeError(
                f"chunker {self._udf.name!r} takes {', '.join(names)}, and got {received}"
            )
        return {name: values[name] for name in names}

    def _run_with_policy(self, values: dict[str, object]) -> Iterator[tuple[object, ...]]:
        columns: list[pa.Array[Any]] = [
            pa.array([_without_rows(value)]) for value in values.values()
        ]
        with tempfile.TemporaryDirectory(prefix="lance-spark-chunks-") as place:
            folder = ChunkFolder(LocalObjects(place), "chunks", "row")
            with UdfRunner(self._udf, chunks=folder) as runner:
                (result,) = runner.run([pa.RecordBatch.from_arrays(columns, names=list(values))])
            handles: Any = result.values
            reader = ChunkReader(folder, self._schema)
            for _, _, batch in reader.batches(
                handles.drop_null(), max_rows=_READ_ROWS, max_bytes=_READ_BYTES
            ):
                yield from _to_tuples(batch)


def _convert_argument(value: Any, parameter: Parameter) -> object:  # noqa: ANN401 - a value of Spark
    if value is None:
        return None
    if parameter.form == "numpy":
        return np.asarray(value)
    if parameter.form == "python":
        read = value_reader(parameter.annotation, where=parameter.name)
        value = _without_rows(value)
        return value if read is None else read(value)
    return io.BytesIO(bytes(value)) if parameter.form == "blob" else value


def _without_rows(value: Any) -> Any:  # noqa: ANN401 - a value of Spark at any depth
    if isinstance(value, Row):
        return {name: _without_rows(value[name]) for name in value.__fields__}
    if isinstance(value, dict):
        return {_without_rows(key): _without_rows(item) for key, item in value.items()}
    return list(map(_without_rows, value)) if isinstance(value, list) else value


def _to_tuples(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


@dataclass
class _AnalyzedTable(AnalyzeResult):
    """Facts about a call before its run: Spark passes them to the tasks."""

    rows: spark_types.StructType = dataclasses.field(default_factory=spark_types.StructType)


def _table_handler(payload: bytes, schema: spark_types.StructType) -> type:
    class Rows:
        """The class called by Spark for each row of a table, and at its end."""

        def __init__(self, analyzed: _AnalyzedTable) -> None:
            self._schema = analyzed.rows
            self._held: list[object] = []
            self._tables: list[pa.Table] = []

        @staticmethod
        def analyze(table: AnalyzeArgument) -> _AnalyzedTable:
            if not table.isTable:
                raise TypeError("it takes a table: call it as f(TABLE(t)), or f(df.asTable())")
            return _AnalyzedTable(schema=schema, withSinglePartition=True, rows=table.dataType)  # type: ignore[arg-type]

        def eval(self, table: object) -> None:
            self._held.append(table)
            if len(self._held) >= _TABLE_ROWS:
                self._flush()

        def terminate(self) -> Iterator[tuple[object, ...]]:
            self._flush()
            rows = HeldRows(self._tables or [spark_arrow_schema(self._schema).empty_table()])
            for batch in call_table(UDF.loads(payload), rows):
                yield from _to_tuples(batch)

        def _flush(self) -> None:
            from pyspark.sql.conversion import LocalDataToArrowConversion

            rows_in_memory, self._held = self._held, []
            if rows_in_memory:
                self._tables.append(
                    LocalDataToArrowConversion.convert(
                        rows_in_memory, self._schema, use_large_var_types=False
                    )
                )

    return Rows


class HeldRows:
    """Rows of a table, held in memory, as the argument of a table function."""

    def __init__(self, tables: list[pa.Table]) -> None:
        self._table = pa.concat_tables(tables)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self._table.schema

    def count_rows(self) -> int:
        """Returns the number of rows."""
        return len(self._table)

    def to_batches(self, *, batch_size: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yields the rows."""
        yield from self._table.to_batches(max_chunksize=batch_size)

    def to_arrow(self) -> pa.Table:
        """Returns all rows."""
        return self._table

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is not imported for its type
        """Returns all rows as a data frame."""
        return self._table.to_pandas()
