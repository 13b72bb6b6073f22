"""Conditions of statements, in Spark SQL, as filters of Lance: :func:`lance_filter`."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, UnsupportedOperationError
from lance_spark.jvm.jar import load
from lance_spark.pushdown.filters import is_exact, translate
from lance_spark.rows.row_addresses import ROW_ADDRESS

_CONDITION = "lancespark.LanceCondition"

MOST_ADDRESSES = 100_000
"""Maximum number of rows for a condition evaluated by Spark: the filter holds a number per row."""


def lance_filter(spark: SparkSession, name: str, ref: DatasetRef, condition: str) -> str:
    """Returns a Lance SQL filter for the rows for which a condition of Spark is TRUE.

    A condition with the same meaning in Lance is translated. For any other condition, Spark finds
    the rows, and the filter lists their addresses, which belong to the version of `ref`.

    Args:
        spark: The session with the functions, views and settings of the condition.
        name: The table in SQL, with its catalog.
        ref: The table at the version of the filter.
        condition: The condition, in Spark SQL.

    Raises:
        OptionError: The condition is not deterministic.
        UnsupportedOperationError: Only Spark can evaluate the condition, and the condition selects
            more than 100,000 rows.
        AnalysisException: Spark does not take the condition.
    """
    rows = spark.read.option("versionAsOf", str(ref.version)).table(name).where(condition)
    query = rows._jdf.queryExecution()  # noqa: SLF001 - PySpark shows plans as text alone
    if not query.analyzed().deterministic():
        raise OptionError(
            "where", condition, "a deterministic condition, without rand() and the like"
        )
    predicate = load(spark.sparkContext._gateway, _CONDITION).newInstance().predicate(rows._jdf)  # noqa: SLF001
    if predicate is not None:
        parsed = json.loads(predicate)
        if isinstance(parsed, bool):
            return str(parsed).lower()
        schema = ref.open().schema
        if is_exact(parsed, schema) and (text := translate(parsed, schema)) is not None:
            return text
    return _select_addresses(rows, ref, condition)


def _select_addresses(rows: DataFrame, ref: DatasetRef, condition: str) -> str:
    addresses = [
        row[0] for row in rows.select(sf.col(ROW_ADDRESS)).limit(MOST_ADDRESSES + 1).collect()
    ]
    if len(addresses) > MOST_ADDRESSES:
        raise UnsupportedOperationError(
            f"Only Spark can evaluate the condition, and it selects more than {MOST_ADDRESSES:,} rows. Condition: "
            f"{condition!r}. Table: {ref.uri}. Nothing was changed. Compare columns with constants, which Lance "
            "evaluates, or first compute the condition as a column of the table."
        )
    return f"{ROW_ADDRESS} IN ({', '.join(map(str, sorted(addresses)))})" if addresses else "false"
