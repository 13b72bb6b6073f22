"""Searches as table functions of Spark SQL, with lateral joins: :func:`register_functions`.

    SELECT * FROM lance_vector_search('/tables/docs.lance', array(0.1, 0.2), k => 3)
    SELECT * FROM q, LATERAL lance_text_search('/tables/docs.lance', q.words, filter => 'lang = 1')

Analysis pins the version. A task runs one search per input row.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import types as spark_types
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError
from lance_spark.options.io_options import STORAGE_PREFIX, ReadOptions
from lance_spark.queries.parameters import TextQuery, VectorQuery, metric_of
from lance_spark.read.ranking.ranking import vector_column, vector_size
from lance_spark.read.ranking.reader import SearchReader, search_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VECTOR, TEXT = "query_vector", "query_text"

FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "lance_vector_search": (VECTOR,),
    "lance_text_search": (TEXT,),
    "lance_hybrid_search": (VECTOR, TEXT),
}
"""The table functions with their query arguments."""

_OF_VECTORS = ("column", "metric", "nprobes", "refine_factor", "ef", "use_index")
_OF_TEXTS = ("text_columns", "phrase")
_OF_BOTH = ("k", "offset", "prefilter")
_OF_READS = ("filter", "columns", "version", "timestamp", "with_row_id", "blob_handling", "options")
_TEXTS = ("path", "column", "metric", "filter", "timestamp", "blob_handling")
"""Arguments of type string."""

_PARAMETERS = {"q": VECTOR, "query": TEXT, "columns": "text_columns"}
"""Parameters of the functions, by the fields of the query classes."""


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A call of a table function. Each row supplies its own queries.

    Attributes:
        ref: The table at a version.
        queries: Names of the query arguments.
        settings: The other arguments of a search, by name.
        options: Options of the read.
        schema: Columns of the result.
    """

    ref: DatasetRef
    queries: tuple[str, ...]
    settings: Mapping[str, Any]
    options: ReadOptions
    schema: spark_types.StructType

    def options_for(self, values: Mapping[str, Any]) -> ReadOptions:
        """Returns the read options of a search with the queries of one row.

        Raises:
            OptionError: A query or a setting is not valid.
        """
        try:
            return self._options_for(values)
        except OptionError as error:
            name = _PARAMETERS.get(error.option)
            if name is None:
                raise
            value = values[name] if name in values else self.settings.get(name)
            raise OptionError(name, value, error.accepted) from error

    def _options_for(self, values: Mapping[str, Any]) -> ReadOptions:
        vector = self._vector_query(values[VECTOR]) if VECTOR in self.queries else None
        text = self._text_query(values[TEXT]) if TEXT in self.queries else None
        return dataclasses.replace(self.options, nearest=vector, full_text_query=text)

    def _vector_query(self, vector: object) -> VectorQuery:
        settings = _chosen(self.settings, _OF_VECTORS + _OF_BOTH)
        if "metric" in settings:
            settings["metric"] = metric_of(settings["metric"])
        if not isinstance(vector, list | tuple):
            raise OptionError(VECTOR, vector, "an array of numbers")
        return VectorQuery(q=tuple(map(_as_float, vector)), **settings)

    def _text_query(self, words: Any) -> TextQuery:  # noqa: ANN401 - whatever a row holds; the query checks it
        columns = self.settings.get("text_columns")
        if columns is not None:
            columns = tuple(columns) if isinstance(columns, list) else (columns,)
        phrase = self.settings.get("phrase", False)
        return TextQuery(
            query=words, columns=columns, phrase=phrase, **_chosen(self.settings, _OF_BOTH)
        )

    def rows(self, values: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
        """Yields the rows of a search as Python values. Yields no rows if a query is NULL."""
        if any(values[name] is None for name in self.queries):
            return
        reader = SearchReader(ref=self.ref, schema=self.schema, options=self.options_for(values))
        for batch in reader.read(reader.partitions()[0]):
            columns: list[Any] = [
                column.to_pylist(maps_as_pydicts="strict") for column in batch.columns
            ]
            yield from zip(*columns, strict=True)


def _as_float(value: Any) -> Any:  # noqa: ANN401 - whatever a row holds; the query checks it
    """Converts a decimal, the type of SQL literals, to a float."""
    return float(value) if isinstance(value, Decimal) else value


@dataclass
class _AnalyzedSearch(AnalyzeResult):
    """The result of the analysis. Spark sends it to the tasks."""

    call: SearchCall | None = None


def _chosen(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of some names, without NULLs."""
    return {name: values[name] for name in names if values.get(name) is not None}


def _analyze(
    function: str, /, *args: AnalyzeArgument, **keywords: AnalyzeArgument
) -> _AnalyzedSearch:
    """Checks the arguments of a call against the table. Runs in a Python process of Spark."""
    arguments = dict(_by_name(function, args, keywords))
    _check_forms(function, arguments)
    values = {name: argument.value for name, argument in arguments.items()}
    _check_types(values)
    queries = FUNCTIONS[function]
    call = _parse_call(queries, values)
    # The task checks a query that is not constant.
    constants = [name for name in queries if arguments[name].isConstantExpression]
    examples = {VECTOR: _example_vector(call), TEXT: "words"}
    schema = search_schema(call.ref, call.options_for({**examples, **_chosen(values, constants)}))
    return _AnalyzedSearch(schema=schema, call=dataclasses.replace(call, schema=schema))


def _check_forms(function: str, arguments: Mapping[str, AnalyzeArgument]) -> None:
    """Raises an OptionError for a table, for a setting per row, or without a required argument."""
    queries = FUNCTIONS[function]
    for name, argument in arguments.items():
        if argument.isTable:
            raise OptionError(name, "a table", f"a value: {_usage(function)}")
        if name not in queries and not argument.isConstantExpression:
            raise OptionError(
                name, "an expression", "a constant: only queries may differ from row to row"
            )
    for name in ("path", *queries):
        if name not in arguments:
            raise OptionError(name, None, _usage(function))


def _parse_call(queries: tuple[str, ...], values: Mapping[str, Any]) -> SearchCall:
    """Opens the table, and returns a call without the schema of its result."""
    given_options = values.get("options") or {}
    _refuse_borrowed(given_options)
    read = {"path": values["path"], **given_options}
    read |= {
        name: _as_option_text(value) for name, value in _chosen(values, _OF_READS[:-1]).items()
    }
    options = ReadOptions.parse(read)
    settings = _chosen(values, _OF_VECTORS + _OF_TEXTS + _OF_BOTH)
    return SearchCall(
        DatasetRef.resolve(options), queries, settings, options, spark_types.StructType()
    )


def _check_types(values: Mapping[str, object]) -> None:
    """Raises an OptionError for an argument that is not a string, or not a map of strings."""
    if values["path"] is None:
        raise OptionError("path", None, "the location of a table")
    for name in _TEXTS:
        value = values.get(name)
        if value is not None and not isinstance(value, str):
            raise OptionError(name, value, "a string")
    options = values.get("options") or {}
    if not isinstance(options, Mapping) or not all(
        isinstance(text, str) for pair in options.items() for text in pair
    ):
        raise OptionError(
            "options", "***", "a map of strings, such as map('storage.region', 'eu-west-1')"
        )


_PLAIN = re.compile(
    r"(aws_)?(default_)?region|((connect|request)_)?timeout|client_(max_retries|retry_timeout)"
)


def _refuse_borrowed(options: Mapping[str, str]) -> None:
    """Refuses options that would send the server's credentials to an endpoint named in a statement.

    `LanceCredentials.java` applies the same rule to views and reads by path, and also accepts
    credentials.
    """
    for key, value in options.items():
        name = key.lower().removeprefix(STORAGE_PREFIX)
        is_plain = (
            _PLAIN.fullmatch(name) is not None and re.fullmatch(r"[\w -]*", value) is not None
        )
        if name != key.lower() and not is_plain:
            raise OptionError(
                key,
                "***",
                "storage.region and timeouts. For other stores, read a view: CREATE TEMPORARY VIEW ... USING lance",
                problem="would go with the credentials of the server's environment",
            )


def _example_vector(call: SearchCall) -> list[float]:
    """Returns a zero vector with the size of the searched column."""
    if VECTOR not in call.queries:
        return [0.0]
    dataset = call.ref.open()
    field: Any = dataset.lance_schema.field(vector_column(dataset, call.settings.get("column")))
    return [0] * (vector_size(field.to_arrow().type) or 1)


def _by_name(
    function: str, args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yields the arguments by name."""
    places = ("path", *FUNCTIONS[function], "k")
    if len(args) > len(places):
        raise OptionError(function, f"{len(args)} arguments by position", _usage(function))
    accepted = _parameter_names(function)
    for name in keywords:
        if name not in accepted:
            raise OptionError(
                name, "an argument", ", ".join(accepted), problem=f"is no argument of {function}"
            )
        if name in places[: len(args)]:
            raise OptionError(name, "an argument", _usage(function), problem="is given twice")
    yield from zip(places, args, strict=False)
    yield from keywords.items()


def _parameter_names(function: str) -> tuple[str, ...]:
    queries = FUNCTIONS[function]
    own = (_OF_VECTORS if VECTOR in queries else ()) + (_OF_TEXTS if TEXT in queries else ())
    return ("path", *queries, *_OF_BOTH, *own, *_OF_READS)


def _usage(function: str) -> str:
    return f"{function}({', '.join(('path', *FUNCTIONS[function]))}, k => 10, ...)"


def _as_option_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, default=str) if isinstance(value, list) else str(value)


class _SearchHandler:
    """The class that Spark calls for each row."""

    function: str

    def __init__(self, analyzed: _AnalyzedSearch) -> None:
        self._analyzed = analyzed

    @cached_property
    def _call(self) -> SearchCall:
        return cast(SearchCall, self._analyzed.call)

    def eval(self, *args: object, **keywords: object) -> Iterator[tuple[object, ...]]:
        """Yields the rows of a search."""
        yield from self._call.rows(dict(_by_name(self.function, args, keywords)))


class VectorSearch(_SearchHandler):
    """The table function `lance_vector_search`."""

    function = "lance_vector_search"
    analyze = staticmethod(partial(_analyze, function))


class TextSearch(_SearchHandler):
    """The table function `lance_text_search`."""

    function = "lance_text_search"
    analyze = staticmethod(partial(_analyze, function))


class HybridSearch(_SearchHandler):
    """The table function `lance_hybrid_search`."""

    function = "lance_hybrid_search"
    analyze = staticmethod(partial(_analyze, function))


HANDLERS: Mapping[str, type[_SearchHandler]] = {
    handler.function: handler for handler in (VectorSearch, TextSearch, HybridSearch)
}
"""Classes of the table functions, by name."""


def register_functions(spark: SparkSession) -> None:
    """Registers the table functions once per session, classic or Spark Connect.

    The session extension of the jar provides the functions otherwise (`LanceFunctions.java`).
    """
    module = type(spark).__module__
    if not module.startswith("pyspark.sql.") or _are_registered(spark):
        return
    create: Callable[..., Any]
    if module.startswith("pyspark.sql.connect."):
        from pyspark.sql.connect.udtf import _create_py_udtf as create
    else:
        from pyspark.sql.udtf import _create_py_udtf as create
    for handler in HANDLERS.values():
        spark.udtf.register(handler.function, create(cls=handler, returnType=None, useArrow=False))


def _are_registered(spark: SparkSession) -> bool:
    try:
        return spark.catalog.functionExists(VectorSearch.function)
    except PySparkException:
        # After temporary functions, Spark asks the current catalog. LanceCatalog has no functions.
        return False
