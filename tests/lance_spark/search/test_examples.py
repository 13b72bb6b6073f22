"""The examples in the docstrings of queries and searches run as plain scripts."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import BatchSearch, Query, Reranker, Search

BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CLASSES = (Query, Search)


def examples_of(documented: object) -> list[str]:
    return [textwrap.dedent(code) for _, code in BLOCK.findall(inspect.getdoc(documented) or "")]


def public_methods() -> dict[str, object]:
    return {
        f"{cls.__name__}.{name}": method
        for cls in CLASSES
        for name, method in vars(cls).items()
        if not name.startswith("_") and inspect.isfunction(method)
    }


def test_each_public_method_has_an_example():
    methods = public_methods()
    assert len(methods) > 20
    assert [name for name, method in methods.items() if not examples_of(method)] == []


def test_the_examples_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = range(20)
    docs = pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "text": [f"{('fresh pears', 'ripe plums')[i % 2]} {i}" for i in rows],
            "price": [5 * i for i in rows],
            "stock": [i % 3 for i in rows],
            "vec": pa.array([[i / 20, 0.2] for i in rows], pa.list_(pa.float32(), 2)),
        }
    )
    lance_spark.connect("tables", spark).create_table("docs", docs).create_fts_index(
        "text", with_position=True
    )
    documented = {cls.__name__: cls for cls in (*CLASSES, BatchSearch, Reranker)} | public_methods()
    # Search repeats methods of Query with their docstrings.
    examples = {example: name for name, item in documented.items() for example in examples_of(item)}
    for example, name in examples.items():
        exec(compile(example, name, "exec"), {"__name__": "__main__"})
