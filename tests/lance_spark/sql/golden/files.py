"""SQL files of Spark's own test suite, read from the test jar on Maven Central."""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zipfile import ZipFile

RELEASE = "4.2.0"
"""The newest release with a test jar on Maven Central. All releases of PySpark read the same files."""

_SHA256 = "810bef6fd568e1626aad7354a1161e9e5ac629fbc55ba0a9a4e3cec8c06376eb"
_URL = "https://repo1.maven.org/maven2/org/apache/spark/spark-sql_2.13/{0}/spark-sql_2.13-{0}-tests.jar"
_INPUTS, _RESULTS = "sql-tests/inputs/", "sql-tests/results/"

_START, _END = "--QUERY-DELIMITER-START", "--QUERY-DELIMITER-END"


_VIEW = re.compile(
    r"(?:CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?VIEW\s+(?:IF\s+NOT\s+EXISTS\s+)?|ALTER\s+VIEW\s+)"
    r"(?:IDENTIFIER\s*\(\s*'(?P<text>[^']+)'\s*\)|(?P<name>`[^`]+`|[\w.]+))",
    re.IGNORECASE,
)
_FUNCTION = re.compile(
    r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?FUNCTION\s+(?:IF\s+NOT\s+EXISTS\s+)?(?P<name>[\w.]+)",
    re.IGNORECASE,
)
_TABLE = re.compile(
    r"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?!IDENTIFIER\b)"
    r"(?:(?:spark_catalog\.)?(?P<schema>\w+)\.)?(?P<name>`[^`]+`|\w+)(?![\w.`])",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"[\s(]*(SELECT|WITH|FROM|VALUES|TABLE|EXPLAIN|DESC|DESCRIBE|SHOW)\b", re.IGNORECASE
)
_CHANGE_AFTER_QUERY = re.compile(
    r"[\s(]*(WITH|FROM)\b.*\b(INSERT\s+(INTO|OVERWRITE)|MERGE\s+INTO)\b", re.IGNORECASE | re.DOTALL
)
_PLAN_OR_FOLDER = re.compile(
    r"[\s(]*(EXPLAIN|DESC|DESCRIBE|SHOW)\b|.*\b(EXPLAIN|input_file_\w+|_metadata)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, order=True, slots=True)
class SparkTableName:
    """Name of a table of Spark's own catalog, in lower case."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"`{self.schema}`.`{self.name}`"

    @property
    def hidden(self) -> SparkTableName:
        """Name of the table behind a view of the same name."""
        return SparkTableName(self.schema, f"{self.name}__hidden")


@dataclass(frozen=True, slots=True)
class GoldenFile:
    """The statements and settings of one file.

    Attributes:
        name: Path below the folder of inputs.
        settings: Settings of the session.
        statements: The statements in order, imported files first.
        outcomes: The outcome of each statement text in Spark's build: schema and sorted rows, or the error's condition.
    """

    name: str
    settings: dict[str, str]
    statements: list[str]
    outcomes: dict[str, str]

    def list_queries(self) -> list[int]:
        """Returns the positions of queries over tables and views of `VALUES`, also through other views and functions."""
        relations: set[str] = set()
        queries = []
        for position, statement in enumerate(self.statements):
            reads = bool(list_words(statement) & relations)
            if table := get_table_name(statement, ""):
                relations.add(table.name)
            elif (name := get_defined_name(statement)) and (reads or is_view_of_values(statement)):
                relations.add(name)
            elif reads and is_query(statement) and not _PLAN_OR_FOLDER.match(statement):
                queries.append(position)
        return queries


def list_words(statement: str) -> set[str]:
    """Returns the words of a statement in lower case, names of relations among them."""
    return {word.lower() for word in re.findall(r"\w+", statement)}


def get_table_name(statement: str, schema: str) -> SparkTableName | None:
    """Returns the name of a created table. The default schema is the current schema."""
    match = _TABLE.match(statement)
    return match and SparkTableName(
        (match["schema"] or schema).lower(), match["name"].strip("`").lower()
    )


def get_defined_name(statement: str) -> str:
    """Returns the last part of the name of a created view or function in lower case, or an empty string."""
    match = _FUNCTION.match(statement)
    return (
        (match["name"] if match else get_view_name(statement)).rpartition(".")[2].strip("`").lower()
    )


def get_view_name(statement: str) -> str:
    """Returns the name of a created or altered view, or an empty string."""
    match = _VIEW.match(statement)
    return (match["name"] or match["text"]) if match else ""


def is_view_of_values(statement: str) -> bool:
    """Returns whether a statement creates a view of `VALUES`, or alters a view into one."""
    return bool(get_view_name(statement) and re.search(r"\bVALUES\b", statement, re.IGNORECASE))


def is_query(statement: str) -> bool:
    """Returns whether a statement changes neither the session nor data."""
    return bool(_QUERY.match(statement)) and not _CHANGE_AFTER_QUERY.match(statement)


@cache
def get_test_jar() -> Path:
    """Returns the path of the jar. The first call of a user downloads the jar.

    Raises:
        OSError: Maven Central does not answer.
        ValueError: The digest of the jar differs.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "lance-spark-tests")
    path = folder / f"spark-sql-{RELEASE}-tests.jar"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        with urllib.request.urlopen(_URL.format(RELEASE), timeout=300) as answer:
            partial.write_bytes(answer.read())
        partial.rename(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != _SHA256:
        raise ValueError(
            f"The digest of the test jar differs: {path} has {digest}. Delete the file and try again."
        )
    return path


@cache
def _read_jar() -> dict[str, str]:
    """Returns the texts of inputs and results by path: opening the jar takes a tenth of a second."""
    with ZipFile(get_test_jar()) as jar:
        paths = [
            path
            for path in jar.namelist()
            if path.startswith((_INPUTS, _RESULTS)) and not path.endswith("/")
        ]
        return {path: jar.read(path).decode() for path in paths}


def list_files() -> list[str]:
    """Returns the names of all files of the jar."""
    names = [path.removeprefix(_INPUTS) for path in _read_jar() if path.startswith(_INPUTS)]
    return sorted(name for name in names if name.endswith(".sql"))


@cache
def read_file(name: str) -> GoldenFile:
    """Returns the statements of a file, after the statements of imported files."""
    texts = _read_jar()
    lines = texts[_INPUTS + name].splitlines()
    outcomes = _read_outcomes(texts.get(f"{_RESULTS}{name}.out", ""))
    comments = [line.strip() for line in lines if _is_comment(line)]
    settings: dict[str, str] = {}
    imported: list[str] = []
    for comment in comments:
        if match := re.match(r"--SET\s+(.*)", comment):
            pairs = (pair.split("=", 1) for pair in re.split(r",\s*(?=spark\.)", match[1]))
            settings |= {key.strip(): value.strip() for key, value in pairs}
        if match := re.match(r"--IMPORT\s+(\S+)", comment):
            imported += read_file(match[1]).statements
    code = "\n".join(line for line in lines if not _is_comment(line))
    return GoldenFile(name, settings, imported + split_statements(code), outcomes)


def _read_outcomes(text: str) -> dict[str, str]:
    outcomes = {}
    for entry in text.split("-- !query\n")[1:]:
        statement, _, rest = entry.partition("\n-- !query schema\n")
        schema, _, output = rest.partition("\n-- !query output\n")
        error = re.search(r'"(?:errorClass|condition)" : "([\w.]+)"', output)
        outcomes[statement] = (
            describe_error(error[1]) if error else describe_rows(schema, output.rstrip("\n"))
        )
    return outcomes


def describe_rows(schema: str, rows: str) -> str:
    """Returns the outcome of a query: rows count, their order does not."""
    return "\n".join([schema, *sorted(line.rstrip() for line in rows.split("\n"))])


def describe_error(condition: str) -> str:
    """Returns the outcome of a failed query."""
    return f"error: {condition}"


def _is_comment(line: str) -> bool:
    return line.strip().startswith("--") and not line.strip().startswith((_START, _END))


def split_statements(code: str) -> list[str]:
    """Splits code at semicolons. A block between delimiters is one statement."""
    statements: list[str] = []
    for position, block in enumerate(re.split(f"{_START}|{_END}", code)):
        parts = (
            [block.rstrip().removesuffix(";")] if position % 2 else re.split(r"(?<=[^\\]);", block)
        )
        statements += [part.strip().replace("\\;", ";") for part in parts]
    return [statement for statement in statements if statement]
