"""What a load refuses of keys, found by Spark before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PythonException
from pyspark.sql import functions as sf

from lance_spark.backfill.driver.spark_failure import failure_of
from lance_spark.errors import SourceChangedError, SourceError, SourceKeysError, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXAMPLES = 5


def check_source_keys(frame: DataFrame, keys: Sequence[str], source: str) -> None:
    """Checks that no key of the source is NULL, or there twice.

    `frame` has the keys alone. One Spark job; keys are shuffled, and nothing else.

    Raises:
        SourceKeysError: Says how many, with examples.
    """
    columns = _plain(keys)
    per_key = frame.toDF(*columns).groupBy(*columns).agg(sf.count(sf.lit(1)).alias("__rows"))
    is_null = _any_null(columns)
    wrong = per_key.where(is_null | (sf.col("__rows") > 1)).agg(
        sf.sum(sf.when(is_null, sf.col("__rows"))).alias("nulls"),
        sf.count(sf.when(~is_null, 1)).alias("keys"),
        sf.sum(sf.when(~is_null, sf.col("__rows"))).alias("rows"),
    )
    with _typed(source):
        counts = wrong.collect()[0]
    name = _shown(keys)
    problems = []
    if counts["nulls"]:
        problems.append(f"{counted(counts['nulls'], 'row')} without a key")
    if counts["keys"]:
        doubled = per_key.where(~is_null & (sf.col("__rows") > 1)).orderBy(*columns).limit(_EXAMPLES)
        examples = _examples(doubled.select(*columns).collect())
        problems.append(
            f"{counted(counts['keys'], 'duplicate key')} in {counted(counts['rows'], 'row')} (first: {examples})"
        )
    if problems:
        raise SourceKeysError(
            f"the source has {' and '.join(problems)} in {name} - in {source} - give each row a key of its own; "
            "nothing was changed",
            source=source,
        )


def check_all_match(table: DataFrame, source: DataFrame, keys: Sequence[str], names: tuple[str, str]) -> None:
    """Checks that every row of the table has a match.

    Both frames have the keys alone; `names` are those of table and source, for the message.

    Raises:
        SourceKeysError: Says how many have none, with examples.
    """
    columns = _plain(keys)
    unmatched = table.toDF(*columns).join(source.toDF(*columns), on=columns, how="left_anti")
    with _typed(names[1]):
        count = unmatched.count()
    if not count:
        return
    examples = _examples(unmatched.select(*columns).limit(_EXAMPLES).collect())
    raise SourceKeysError(
        f"{counted(count, 'row')} of the table {'has' if count == 1 else 'have'} no match in the source, by "
        f"{_shown(keys)} (among them: {examples}) - {names[0]} and {names[1]} - complete the source, or use "
        "on_missing='carry' or 'null'; nothing was changed",
        source=names[1],
    )


def _plain(keys: Sequence[str]) -> list[str]:
    """Returns names that clash with no other and need no quotes."""
    return [f"key_{number}" for number in range(len(keys))]


@contextmanager
def _typed(source: str) -> Iterator[None]:
    """Turns what a task said of the source into the error that it was there."""
    try:
        yield
    except PythonException as error:
        failure = failure_of(error)
        kinds = {f"{kind.__module__}.{kind.__name__}": kind for kind in (SourceError, SourceChangedError)}
        kind = kinds.get(failure.error_type, SourceError)
        known = failure.error_type in kinds
        message = failure.message if known else f"it cannot be read: {failure.error_type}: {failure.message} - {source}"
        raise kind(message, source=source) from error


def _any_null(columns: Sequence[str]) -> Any:  # noqa: ANN401 - a Column, of classic Spark or of Connect
    condition = sf.lit(False)
    for column in columns:
        condition = condition | sf.col(column).isNull()
    return condition


def _shown(keys: Sequence[str]) -> str:
    return f"column {keys[0]!r}" if len(keys) == 1 else f"columns {', '.join(map(repr, keys))}"


def _examples(rows: Sequence[Any]) -> str:
    return ", ".join(repr(row[0]) if len(row) == 1 else repr(tuple(row)) for row in rows)
