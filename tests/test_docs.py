"""The documentation is right: its examples run, its links lead somewhere, its tables of options match the code."""

from __future__ import annotations

import inspect
import re
import runpy
import textwrap
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.options import ReadOptions, WriteOptions, options_table
from lance_spark.table.branches import Branches

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = {"environments.md"}
"""Pages whose examples run only in `make test-long`."""

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^    ```python\n(.*?)^    ```$", re.MULTILINE | re.DOTALL)
QUICK_EXAMPLES = {"connect", "Connection.open_table", "Table", "Table.update"}
"""Examples that the quick suite runs."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[tuple[int, str]]:
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long if page.name in LONG else (), id=page_id(page))
        for page in PAGES
        if python_blocks(page)
    ],
)
def test_the_examples_run(page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a script in a new folder, from the text of the page alone. The script finds the running session."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / f"{page.stem}.py"
    lines: list[str] = []
    for line, block in python_blocks(page):
        # Blank lines between the blocks give a failure the line number of the page.
        lines += [""] * (line - len(lines)) + block.splitlines()
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")


CLASSES: tuple[type[object], ...] = (
    lance_spark.Connection,
    lance_spark.Table,
    lance_spark.Job,
    lance_spark.TableReference,
    lance_spark.TableVersion,
    lance_spark.TableDiff,
    lance_spark.Tags,
    lance_spark.Versions,
    lance_spark.Preview,
    lance_spark.RefreshPlan,
    Branches,
)


def examples() -> dict[str, str]:
    """Returns the examples in docstrings of public functions and methods, by their names."""
    subjects: dict[str, object] = {"connect": lance_spark.connect, "open_table": lance_spark.open_table}
    for cls in CLASSES:
        subjects[cls.__name__] = cls
        subjects |= {f"{cls.__name__}.{name}": getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
    texts = {name: inspect.getdoc(subject) or "" for name, subject in subjects.items()}
    return {name: match[1] for name, text in texts.items() if (match := EXAMPLE.search(text))}


def test_every_method_of_a_connection_a_table_and_a_job_has_an_example():
    methods = [
        f"{cls.__name__}.{name}"
        for cls in (lance_spark.Connection, lance_spark.Table, lance_spark.Job)
        for name in dir(cls)
        if not name.startswith("_") and name != "spark"
    ]
    assert sorted(set(methods) - examples().keys()) == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_EXAMPLES else pytest.mark.long) for name in examples()]
)
def test_an_example_of_a_docstring_runs(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a script of its own, in a new folder."""
    monkeypatch.chdir(tmp_path)
    exec(compile(textwrap.dedent(examples()[name]), name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path):
    targets = [
        link
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not link.startswith("#")
    ]
    dead_links = [link for link in targets if not (page.parent / link.split("#")[0]).exists()]
    assert dead_links == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_names_its_language_and_is_closed(page: Path):
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= {"```python", "```sql", "```text", "```sh", "```json", "```java", "```mermaid"}
    assert set(fences[1::2]) <= {"```"}


@pytest.mark.parametrize(("name", "options"), [("reading.md", ReadOptions), ("writing.md", WriteOptions)])
def test_the_options_are_documented_as_they_are(name: str, options: type[ReadOptions] | type[WriteOptions]):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    absent = [row for row in options_table(options).splitlines() if row not in text]
    assert absent == [], "paste the output of lance_spark.options.options_table"


def test_the_reference_has_every_public_name():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = re.findall(
        r"^::: lance_spark\.(\w+)$", "\n".join(page.read_text(encoding="utf-8") for page in pages), re.MULTILINE
    )
    public = {name for name in dir(lance_spark) if not name.startswith("_")}
    assert sorted(named) == sorted(public - {"GenevaManifest"}), "GenevaManifest is another name of Manifest"


def test_the_readme_shows_what_the_two_commands_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
