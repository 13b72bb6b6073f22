"""SQL statements with one wrong part: each works, or raises an error of Spark or of this package about the wrong
part.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.jvm.jar import load
from tests.wrong_arguments.statements import SOURCES, WrongStatement
from tests.wrong_arguments.subjects import make_template
from tests.wrong_arguments.values import sample

pytestmark = pytest.mark.classic

QUICK_STATEMENTS = {"templates": 12, "procedures": 8, "searches": 3}
LONG_STATEMENTS = {"templates": 3000, "procedures": 1500, "searches": 600}
PARTS = 6
"""Tests of each source in the long suite."""

OURS = re.compile(r"\b(?:lance_spark|udf_runtime)(?:\.\w+)*\.\w+(?:Error|Exception)?: ")
BARE = re.compile(
    r"NullPointerException|ClassCastException|MatchError|NoSuchElementException|OutOfBoundsException|StackOverflowError|INTERNAL_ERROR|NumberFormat"
    r"|PanicException|panicked|Py4J|builtins\.\w+|pyarrow\.lib\.\w+|\b(?:KeyError|AttributeError|IndexError|AssertionError|RecursionError|ArrowInvalid): "
)


SPARKS_OWN = re.compile(
    r"SparkException: \[(?!INTERNAL_ERROR)[A-Z_.]+\]"  # PySpark has no exception for the class
    r"|PatternSyntaxException|Can not create a Path from an empty string|args must be foldable"
)
"""Errors of Spark's own, raised over every catalog. Errors with a class are recognised by the class."""
UNDERSTOOD = re.compile(r"(?:NotFound|Filter|TableUnreadable)Error$")
"""Errors whose class identifies the wrong part: the table, the column, the version or the condition."""


class Tables:
    """A catalog in which each statement after a change finds the original table."""

    def __init__(self, spark: SparkSession, template: Path, folder: Path) -> None:
        self.spark, self.template, self.folder = spark, template, folder
        self._number = itertools.count()
        folder.mkdir()
        shutil.copytree(template / "v.lance", folder / "v.lance")
        self._renew()

    def _renew(self) -> None:
        self.name = f"t{next(self._number)}"
        shutil.copytree(self.template / "t.lance", self.folder / f"{self.name}.lance")
        self._before = self._versions()

    def _versions(self) -> list[str]:
        table = self.folder / f"{self.name}.lance"
        return sorted(
            str(file)
            for part in ("_versions", "_refs", "tree")
            for file in (table / part).rglob("*")
        )

    def fault_of(self, statement: WrongStatement) -> str | None:
        """Runs a statement, and returns its fault."""
        number = next(self._number)
        words = {
            "t": f"lance.{self.name}",
            "bare": self.name,
            "path": f"{self.folder}/{self.name}.lance",
            "n": str(number),
        }
        words["new"] = f"lance.new{number}"
        text = re.sub(r"\{(t|bare|path|n|new)\}", lambda word: words[word[1]], statement.text)
        excerpt = text if len(text) < 200 else f"{text[:150]} ... {text[-40:]}"
        try:
            self.spark.sql(text).collect()
            fault, raised = None, False
        except (PySparkException, Py4JJavaError) as error:
            fault, raised = fault_in(error, statement), True
        except Exception as error:  # noqa: BLE001 - what no statement may raise
            fault, raised = f"{type(error).__name__}: {str(error)[:300]}", True
        if (versions := self._versions()) != self._before:
            if (
                raised
                and versions
                and not ("WITH SCHEMA EVOLUTION" in text and self._has_its_rows())
            ):
                fault = fault or "a statement that raised changed the table"
            self._renew()
        return fault and f"{excerpt}\n    {fault}"

    def _has_its_rows(self) -> bool:
        """Tells whether the table has the rows of the template: schema evolution adds columns before the write."""
        expected = lance.dataset(f"{self.template}/t.lance").to_table()
        rows = lance.dataset(f"{self.folder}/{self.name}.lance").to_table()
        added = [name for name in rows.column_names if name not in expected.column_names]
        return rows.select(expected.column_names).equals(expected) and all(
            rows[name].null_count == len(rows) for name in added
        )


def fault_in(error: PySparkException | Py4JJavaError, statement: WrongStatement) -> str | None:
    """Returns the fault of a statement's error."""
    message = str(error).partition("JVM stacktrace")[0]
    if OURS.search(message) is None and SPARKS_OWN.search(message):
        return None
    if isinstance(error, Py4JJavaError):
        return f"Py4JJavaError: {' '.join(message.split())[:500]}"
    error_text = f"{type(error).__name__}: {' '.join(message.split())[:500]}"
    ours = OURS.search(message)
    if isinstance(error, ParseException):
        return None
    if BARE.search(message.partition(" == SQL")[0]) and not (ours and "Traceback" not in message):
        return error_text
    if ours is None:
        return (
            error_text if error.getCondition() is None or "PYTHON_DATA_SOURCE" in message else None
        )
    about = message[ours.end() :]
    if UNDERSTOOD.search(ours[0].rstrip(": ")) or any(
        clause in about for clause in statement.clauses
    ):
        return None
    if statement.names and not any(name.lower() in about.lower() for name in statement.names):
        return f"names none of {statement.names}: {error_text}"
    return None


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template") / "db")


@pytest.fixture
def tables(spark: SparkSession, template: Path, tmp_path: Path) -> Iterator[Tables]:
    forget = load(spark.sparkContext._gateway, "lancespark.LanceRegistry").newInstance()
    forget.register("lance", {})
    lance_spark.catalog(spark, "lance", str(tmp_path / "db"), allow_stored_code=True)
    yield Tables(spark, template, tmp_path / "db")
    spark.sql("USE spark_catalog.default")
    spark.catalog.clearCache()
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)
    forget.register("lance", {})


def fail_for(faults: list[str]) -> None:
    if faults:
        pytest.fail(f"{len(faults)} faults\n" + "\n".join(faults), pytrace=False)


@pytest.mark.long
def test_a_statement_with_a_wrong_part_works_or_says_what_is_wrong(tables: Tables):
    statements = [
        statement
        for source, count in QUICK_STATEMENTS.items()
        for statement in sample(list(SOURCES[source]()), count, source, "quick")
    ]
    fail_for([fault for statement in statements if (fault := tables.fault_of(statement))])


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("source", SOURCES)
def test_every_statement_with_a_wrong_part_works_or_says_what_is_wrong(
    tables: Tables, source: str, part: int
):
    statements = sample(list(SOURCES[source]()), LONG_STATEMENTS[source], source)[part::PARTS]
    fail_for([fault for one in statements if (fault := tables.fault_of(one))])
