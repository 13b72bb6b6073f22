"""The documentation is right: its examples run, its links lead somewhere, its tables of options match the code."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import shutil
import textwrap
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.changes.options import ChangeOptions
from lance_spark.options.io_options import ReadOptions, WriteOptions, options_table
from lance_spark.table.branches import Branches
from tests.support.pages import python_blocks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = {"change-feed.md", "environments.md", "errors.md", "conflicts.ipynb", "first-steps.ipynb"}
"""Pages and notebooks whose examples run only in `make test-long`."""

RECIPES = {path.stem.replace("_", "-") for path in (ROOT / "examples" / "recipes").glob("*.py")}
"""Pages with the code of a script, which tests/test_recipes.py runs."""

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

EXAMPLE = re.compile(r"^    ```python\n(.*?)^    ```$", re.MULTILINE | re.DOTALL)
QUICK_EXAMPLES = {"connect", "Connection.open_table", "Table", "Table.update"}
"""Examples that the quick suite runs."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long if page.name in LONG else (), id=page_id(page))
        for page in PAGES
        if python_blocks(page) and page.stem not in RECIPES
    ],
)
def test_the_examples_run(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a script in a new folder, from the text of the page alone. The script finds the running session."""
    monkeypatch.chdir(tmp_path)
    run_script(python_blocks(page))


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, marks=pytest.mark.long if path.name in LONG else (), id=path.name)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_prints_its_stored_outputs(
    notebook: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The cells run as a script, so the test needs no Jupyter. `make notebooks` stores the outputs."""
    monkeypatch.chdir(tmp_path)
    cells = [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    run_script([(0, "".join(cell["source"])) for cell in cells])
    stored = [
        output for cell in cells for output in cell["outputs"] if output.get("name") == "stdout"
    ]
    assert capsys.readouterr().out == "".join("".join(output["text"]) for output in stored)


def run_script(blocks: list[tuple[int, str]]) -> None:
    """Runs blocks of code with their lines as a script in the current folder."""
    lines: list[str] = []
    for line, block in blocks:
        # Blank lines between the blocks give a failure the line number of the page.
        lines += [""] * (line - len(lines)) + block.splitlines()
    script = Path("script.py").absolute()
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
    lance_spark.Search,
    lance_spark.BatchSearch,
    Branches,
)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table of the examples of searches."""
    folder = tmp_path_factory.mktemp("examples") / "tables"
    rows = [
        {"id": i, "text": f"fresh pears {i}", "price": i, "stock": i % 4, "vec": [i / 20, 0.5]}
        for i in range(20)
    ]
    vectors = pa.field("vec", pa.list_(pa.float32(), 2))
    schema = pa.schema(
        {"id": pa.int64(), "text": pa.string(), "price": pa.int64(), "stock": pa.int64()}
    ).append(vectors)
    docs = lance_spark.connect(str(folder), spark=spark).create_table(
        "docs", pa.Table.from_pylist(rows, schema)
    )
    docs.create_fts_index("text")
    return folder


def examples() -> dict[str, str]:
    """Returns the examples in docstrings of public functions and methods, by their names."""
    subjects: dict[str, object] = {name: getattr(lance_spark, name) for name in lance_spark.__all__}
    for cls in CLASSES:
        subjects[cls.__name__] = cls
        subjects |= {
            f"{cls.__name__}.{name}": getattr(cls, name)
            for name in dir(cls)
            if not name.startswith("_")
        }
    texts = {name: inspect.getdoc(subject) or "" for name, subject in subjects.items()}
    return {name: match[1] for name, text in texts.items() if (match := EXAMPLE.search(text))}


def test_every_public_name_has_an_example():
    texts = {name: inspect.getdoc(getattr(lance_spark, name)) or "" for name in lance_spark.__all__}
    lacking = {
        name for name, text in texts.items() if not EXAMPLE.search(text) and ">>> " not in text
    }
    assert lacking == {"__version__"}


def test_every_method_of_the_classes_that_users_call_has_an_example():
    methods = [
        f"{cls.__name__}.{name}"
        for cls in (lance_spark.Connection, lance_spark.Table, lance_spark.Search, lance_spark.Job)
        for name in dir(cls)
        if not name.startswith("_")
        and (callable(getattr(cls, name)) or isinstance(getattr(cls, name), property))
    ]
    assert sorted(set(methods) - examples().keys()) == ["Connection.spark"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK_EXAMPLES else pytest.mark.long)
        for name in examples()
    ],
)
def test_an_example_of_a_docstring_runs(
    name: str, spark: SparkSession, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a script of its own, in a folder with the table of searches."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tables, tmp_path / "tables")
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
    fences = [
        line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")
    ]
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= {
        "```python",
        "```sql",
        "```text",
        "```sh",
        "```json",
        "```java",
        "```mermaid",
    }
    assert set(fences[1::2]) <= {"```"}


@pytest.mark.parametrize(
    ("name", "options"),
    [("reading.md", ReadOptions), ("writing.md", WriteOptions), ("change-feed.md", ChangeOptions)],
)
def test_the_options_are_documented_as_they_are(
    name: str, options: type[ReadOptions | WriteOptions | ChangeOptions]
):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    absent = [row for row in options_table(options).splitlines() if row not in text]
    assert absent == [], "paste the output of lance_spark.options.io_options.options_table"


def test_the_reference_has_every_public_name():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = re.findall(
        r"^::: lance_spark\.(\w+)$",
        "\n".join(page.read_text(encoding="utf-8") for page in pages),
        re.MULTILINE,
    )
    public = {name for name in dir(lance_spark) if not name.startswith("_")}
    assert sorted(named) == sorted(public - {"GenevaManifest"}), (
        "GenevaManifest is another name of Manifest"
    )


def test_the_guide_of_platforms_installs_the_requirements_without_pyspark():
    """A platform has its own PySpark, so the guide lists all other requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [text for text in project["dependencies"] if not text.startswith("pyspark")]
    command = " ".join(f'"{text}"' for text in requirements)
    assert f"pip install {command}" in (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")


def test_the_readme_shows_what_the_two_commands_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
