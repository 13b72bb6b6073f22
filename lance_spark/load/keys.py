"""Validation of the keys of a load by Spark, before any change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PythonException
from pyspark.sql import functions as sf

from lance_spark.errors import SourceError, SourceKeysError, counted
from lance_spark.spark_jobs.failures import SparkFailure, raise_task_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXAMPLES = 5


def check_source_keys(frame: DataFrame, keys: Sequence[str], source: str) -> None:
    """Refuses duplicate and NULL keys of the source.

    `frame` has only the keys. Runs a Spark job with a shuffle of the keys.

    Raises:
        SourceKeysError: The message has the number of wrong keys, and examples.
    """
    columns = _number_keys(keys)
    per_key = frame.toDF(*columns).groupBy(*columns).agg(sf.count(sf.lit(1)).alias("__rows"))
    is_null = _any_null(columns)
    wrong = per_key.where(is_null | (sf.col("__rows") > 1)).agg(
        sf.sum(sf.when(is_null, sf.col("__rows"))).alias("nulls"),
        sf.count(sf.when(~is_null, 1)).alias("keys"),
        sf.sum(sf.when(~is_null, sf.col("__rows"))).alias("rows"),
    )
    with _source_errors(source):
        counts = wrong.collect()[0]
    name = _quote_columns(keys)
    problems = []
    if counts["nulls"]:
        problems.append(f"{counted(counts['nulls'], 'row')} without a key")
    if counts["keys"]:
        doubled = (
            per_key.where(~is_null & (sf.col("__rows") > 1)).orderBy(*columns).limit(_EXAMPLES)
        )
        examples = _examples(doubled.select(*columns).collect())
        problems.append(
            f"{counted(counts['keys'], 'duplicate key')} in {counted(counts['rows'], 'row')} (first: {examples})"
        )
    if problems:
        raise SourceKeysError(
            f"Keys must be unique and not NULL, and the source has {' and '.join(problems)} in {name}. Give each row "
            f"of {source} a key of its own. Nothing was changed.",
            source=source,
        )


def check_all_match(
    table: DataFrame, source: DataFrame, keys: Sequence[str], names: tuple[str, str]
) -> None:
    """Refuses rows of the table without a match.

    Both frames have only the keys. `names` are the names of table and source for the message.

    Raises:
        SourceKeysError: The message has the number of unmatched rows, and examples.
    """
    columns = _number_keys(keys)
    unmatched = table.toDF(*columns).join(source.toDF(*columns), on=columns, how="left_anti")
    with _source_errors(names[1]):
        count = unmatched.count()
    if not count:
        return
    examples = _examples(unmatched.select(*columns).limit(_EXAMPLES).collect())
    raise SourceKeysError(
        f"{counted(count, 'row')} of the table {'has' if count == 1 else 'have'} no match in the source, by "
        f"{_quote_columns(keys)} (among them: {examples}). Complete the source {names[1]} for the table {names[0]}, or "
        "use on_missing='carry' or 'null'. Nothing was changed.",
        source=names[1],
    )


def _number_keys(keys: Sequence[str]) -> list[str]:
    """Returns unique names without special characters."""
    return [f"key_{number}" for number in range(len(keys))]


@contextmanager
def _source_errors(source: str) -> Iterator[None]:
    """Raises a :class:`SourceError` in place of the exception of a failed task."""
    try:
        with raise_task_errors(SourceError, source=source):
            yield
    except PythonException as error:
        problem = f"The source {source} cannot be read: {SparkFailure.of(error).text}"
        raise SourceError(problem, source=source) from error


def _any_null(columns: Sequence[str]) -> Any:  # noqa: ANN401 - a Column, of classic Spark or of Connect
    condition = sf.lit(False)
    for column in columns:
        condition = condition | sf.col(column).isNull()
    return condition


def _quote_columns(keys: Sequence[str]) -> str:
    return f"column {keys[0]!r}" if len(keys) == 1 else f"columns {', '.join(map(repr, keys))}"


def _examples(rows: Sequence[Any]) -> str:
    return ", ".join(repr(row[0]) if len(row) == 1 else repr(tuple(row)) for row in rows)
