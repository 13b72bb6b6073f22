"""`DELETE`, `UPDATE` and `MERGE` leave the rows of the table of cases."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark import Connection
from tests.lance_spark.sql.conftest import Sql
from tests.lance_spark.sql.row_cases import CASES, TABLES, RowCase

pytestmark = pytest.mark.classic


def read_rows(uri: str) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple(row.values()) for row in lance.dataset(uri).to_table().to_pylist()), key=repr
    )


@pytest.mark.sample(30)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.covers)
def test_a_statement_leaves_the_rows_of_its_case(
    sql: Sql, db: Connection, spark: SparkSession, request: pytest.FixtureRequest, case: RowCase
) -> None:
    """Every second statement names the table without the catalog, after `USE`."""
    schema, uri = TABLES[case.table], f"{db.uri}/t.lance"
    rows = [dict(zip(schema.names, row, strict=True)) for row in case.before]
    lance.write_dataset(
        pa.Table.from_pylist(rows, schema),
        uri,
        max_rows_per_file=2,
        enable_stable_row_ids=len(case.covers) % 2 == 0,
    )
    is_current = len(case.statement) % 2 == 0
    if is_current:
        sql("USE {c}")
        request.addfinalizer(lambda: spark.catalog.setCurrentCatalog("spark_catalog"))
    *setup, last = case.statement.replace("{t}", "t" if is_current else "{c}.t").split("; ")
    for statement in setup:
        sql(statement)
    if case.fails:
        version = lance.dataset(uri).version
        with pytest.raises(PySparkException, match=case.fails):
            sql(last)
        assert lance.dataset(uri).version == version
    else:
        counts = sql(last)
        assert case.counts is None or counts == [case.counts]
    lance.dataset(uri).validate()
    assert read_rows(uri) == sorted(case.before if case.after is None else case.after, key=repr)
