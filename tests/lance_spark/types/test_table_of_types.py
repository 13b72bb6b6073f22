"""The table in `docs/types.md` agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from lance_spark.types import to_lance_schema, to_spark_schema

PAGE = Path(__file__).parents[3] / "docs" / "types.md"


def table(name: str) -> list[tuple[str, str]]:
    """Returns the first two cells of each row of a table of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"<!-- {name} -->\n", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return [(row[0], row[1]) for row in rows]


def arrow(name: str) -> list[pa.DataType]:
    """Returns the types named in a cell."""
    many = re.fullmatch(r"(\w+)\[([\w, ]+)\]", name)
    if many and many[1] in ("timestamp", "duration", "time32", "time64"):
        return [getattr(pa, many[1])(unit.strip()) for unit in many[2].split(",")]
    special = {
        "decimal128(p, s)": pa.decimal128(12, 3),
        "decimal256(p, s)": pa.decimal256(12, 3),
        "fixed_size_binary[n]": pa.binary(4),
        "bool": pa.bool_(),
    }
    return [special[name]] if name in special else [getattr(pa, name)()]


PLAIN_READS = [
    (arrow_cell, spark_cell)
    for arrow_cell, spark_cell in table("read")
    if not re.search(r"list|struct|map|dictionary|JSON|blob|bfloat|other", arrow_cell)
]


def test_the_table_is_found():
    assert len(PLAIN_READS) > 20
    assert len(table("write")) > 20


@pytest.mark.parametrize(("arrow_cell", "spark_cell"), PLAIN_READS)
def test_a_row_of_the_read_table_is_true(arrow_cell: str, spark_cell: str):
    zone = "UTC" if "with a zone" in arrow_cell else None
    for name in re.findall(r"`([^`]+)`", arrow_cell):
        for kind in arrow(name):
            stored = pa.timestamp(kind.unit, zone) if isinstance(kind, pa.TimestampType) else kind
            got = to_spark_schema(pa.schema([("c", stored)]))["c"].dataType.simpleString()
            assert f"`{got}`" == spark_cell.replace("(p,s)", "(12,3)")


PLAIN_WRITES = [
    (spark_cell, arrow_cell)
    for spark_cell, arrow_cell in table("write")
    if not re.search(r"<|variant|geo|user|interval|void|time\(", spark_cell)
]


@pytest.mark.parametrize(("spark_cell", "arrow_cell"), PLAIN_WRITES)
def test_a_row_of_the_write_table_is_true(spark_cell: str, arrow_cell: str):
    kinds = {"decimal(p,s)": T.DecimalType(12, 3)}
    name = spark_cell.strip("`")
    kind = (
        kinds.get(name)
        or T.StructType.fromJson(
            {
                "type": "struct",
                "fields": [
                    {
                        "name": "c",
                        "type": JSON_NAMES.get(name, name),
                        "nullable": True,
                        "metadata": {},
                    }
                ],
            }
        )["c"].dataType
    )
    arrow_type = to_lance_schema(T.StructType([T.StructField("c", kind)]), {}).field("c").type
    assert f"`{arrow_type}`" == arrow_cell.replace("(p, s)", "(12, 3)")


JSON_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
