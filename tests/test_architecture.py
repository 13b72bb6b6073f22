"""Rules for the code as a whole: allowed imports, cost of an import, length of a module."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import lizard
import pytest

from lance_spark.jvm.commands import COMMANDS, find_command

ROOT = Path(__file__).parents[1]
PACKAGES = ("lance_spark", "udf_runtime")
MOST_LINES = 600
MOST_COMPLEX = 15
"""The highest cyclomatic complexity of a function, as lizard counts it."""
COMPLEX = 10
COMPLEX_SHARE = 0.02
"""At most this share of the functions has a complexity above COMPLEX."""
SINGLE_FILES = (
    "/pyspark_lance.py",
    "/udf_runtime",
    "/tests/test_architecture.py",
    "/tests/lance_spark/conflicts/cases.py",
)

LAYERS = [
    {
        "arguments",
        "display",
        "errors",
        "interpreter",
        "lance_compat",
        "locations",
        "metrics",
        "namespaces",
        "options",
        "queries",
        "stored_json",
        "types",
    },
    {"jvm"},
    {"lance_sessions", "version_times"},
    {"dataset"},
    {"storage"},
    {"read", "pushdown"},
    {"rows"},
    {"commit"},
    {"staging"},
    {"rebase"},
    {"changes"},
    {"write"},
    {"session"},
    {"spark_jobs"},
    {"ingest"},
    {"environments"},
    {"jobs", "versions"},
    {"columns"},
    {"backfill"},
    {"indexes", "search"},
    {"load", "upkeep", "views"},
    {"agent"},
    {"dml"},
    {"integrity", "report"},
    {"table"},
    {"streaming"},
    {"sql"},
    {"datasource", "cli"},
]
"""A module may import from the layers before its own, and from its own part of its own layer."""

LEAVES = LAYERS[0]
"""These may import each other: options raise errors."""


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and absolute name of every import in a file, at any depth, including `if TYPE_CHECKING`."""
    package = (
        name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    )
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def part_of(module: str) -> str | None:
    """Returns the part of lance_spark that contains a module; `types_arrow` belongs to `types`, the package itself to
    none.
    """
    parts = module.split(".")
    if parts[0] != "lance_spark" or len(parts) == 1:
        return None
    folders = set().union(*LAYERS)
    return parts[1] if parts[1] in folders else parts[1].split("_")[0]


def layer_of(part: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


def violations(path: Path) -> list[str]:
    me = name_of(path)
    part = part_of(me)
    wrong_imports = []
    for line, target in imports_of(path):
        top = target.split(".")[0]
        problem = None
        if me.startswith("udf_runtime") and top in ("pyspark", "py4j", "lance", "lance_spark"):
            problem = "udf_runtime knows nothing of Spark and Lance"
        elif part == "commit" and top in ("pyspark", "py4j", "udf_runtime"):
            problem = "commit/ needs neither Spark nor UDFs"
        elif top == "lance_spark" and part is not None:
            imported_part = part_of(target)
            if imported_part is None or imported_part not in set().union(*LAYERS):
                problem = "only the package's own modules, by their names"
            elif (
                imported_part != part
                and not {part, imported_part} <= LEAVES
                and layer_of(imported_part) >= layer_of(part)
            ):
                problem = f"{part} comes before, or is blind to, {imported_part}"
        if problem:
            wrong_imports.append(f"{path.relative_to(ROOT)}:{line} imports {target}: {problem}")
    return wrong_imports


def test_every_module_of_the_package_belongs_to_a_layer():
    parts = {part_of(name_of(path)) for path in modules()} - {None}
    assert parts <= set().union(*LAYERS), "a new part of lance_spark needs its place in LAYERS"


def test_imports_go_one_way():
    assert [violation for path in modules() for violation in violations(path)] == []


IMPORTS_BY_TEXT = {"lance_spark", "lance_spark.jvm.commands"}
"""Modules that import modules of the package by their names as texts: public names, and commands of the Java classes."""


def imported_texts(path: Path) -> list[str]:
    """Returns a module's arguments of `import_module` below `lance_spark` and `udf_runtime`."""
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    texts = [
        ast.unparse(call.args[0])
        for call in calls
        if ast.unparse(call.func).endswith(("import_module", "__import__"))
    ]
    return [text for text in texts if not re.fullmatch(r"'(?!lance_spark|udf_runtime).*'", text)]


def test_one_table_imports_modules_by_text():
    # The session daemon imports packages outside of this one, by the names of its table.
    by_text = {name_of(path) for path in modules() if imported_texts(path)} - {
        "lance_spark.session.daemon"
    }
    assert by_text == IMPORTS_BY_TEXT


def test_the_java_classes_and_the_table_of_commands_agree():
    java = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "java" / "src" / "main").rglob("*.java")
    )
    commands = {name for names in COMMANDS.values() for name in names}
    assert {name for name in commands if f'"{name}"' not in java} == set(), (
        "no Java class asks for them"
    )
    assert set(re.findall(r"\bask\(\s*\"(\w+)\"", java)) - commands == set(), (
        "commands without a function"
    )
    assert all(callable(find_command(name)) for name in commands)


def test_a_wrong_import_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    wrong = {
        "udf_runtime/a.py": "def f():\n    import pyspark.sql",
        "lance_spark/commit/b.py": "from pyspark.sql import Row",
        "lance_spark/read/c.py": "from lance_spark.pushdown import filters",
        "lance_spark/read/d.py": "from ..commit.changes import x",
        "lance_spark/dataset.py": "import lance_spark.read.planning.partitioning",
        "lance_spark/types_arrow.py": "from lance_spark.dataset import DatasetRef",
        "lance_spark/write/e.py": "from lance_spark import last_commit",
    }
    right = {
        "lance_spark/write/f.py": "from lance_spark.commit.changes import x\nfrom lance_spark.read import plan\nimport udf_runtime",
        "lance_spark/options/io_options.py": "from lance_spark.errors import OptionError",
        "lance_spark/__init__.py": "from lance_spark.commit.commit_loop import last_commit",
    }
    for name, text in (wrong | right).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [name for name in wrong if not violations(tmp_path / name)] == []
    assert [name for name in right if violations(tmp_path / name)] == []


def test_schemas_of_spark_are_parsed_in_one_place_which_loads_no_class():
    parsing = [
        name_of(path) for path in modules() if ".fromJson(" in path.read_text(encoding="utf-8")
    ]
    assert parsing == ["lance_spark.types.schemas"]


def from_tests(path: Path) -> list[str]:
    """Returns imports of test modules: pytest would collect their fixtures and tests twice."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {target}: what several modules use belongs to tests/support"
        for line, target in (
            imports_of(path) if "test_" in path.read_text(encoding="utf-8") else ()
        )
        if target.startswith("tests.")
        and any(part.startswith("test_") for part in target.split(".")[:-1])
    ]


def test_tests_import_nothing_from_test_modules():
    assert [
        import_line
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for import_line in from_tests(path)
    ] == []


def test_an_import_of_a_test_module_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("def f():\n    from tests.x.test_y import z")
    (tmp_path / "b.py").write_text("from tests.x.cases import test_data")
    assert from_tests(tmp_path / "a.py") and not from_tests(tmp_path / "b.py")


def lines_of_docstring(node: ast.AST) -> int:
    """Returns the number of lines of a docstring; examples make these longer than the code."""
    if (
        not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        or ast.get_docstring(node) is None
    ):
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def lines_of_code(path: Path) -> int:
    """Returns the number of lines of a module without docstrings."""
    text = path.read_text(encoding="utf-8")
    return len(text.splitlines()) - sum(
        lines_of_docstring(node) for node in ast.walk(ast.parse(text))
    )


def test_a_module_can_be_read_in_one_sitting():
    long = {
        name_of(path): lines for path in modules() if (lines := lines_of_code(path)) > MOST_LINES
    }
    assert long == {}, "split them along the reasons why they change"


def test_functions_are_simple():
    complexities = [
        (
            function.cyclomatic_complexity,
            f"{path.relative_to(ROOT)}:{function.start_line} {function.name}",
        )
        for path in modules()
        for function in lizard.analyze_file(str(path)).function_list
    ]
    complex_functions = sorted(pair for pair in complexities if pair[0] > COMPLEX)
    assert [pair for pair in complex_functions if pair[0] > MOST_COMPLEX] == [], (
        "split them by decision"
    )
    assert len(complex_functions) <= COMPLEX_SHARE * len(complexities), complex_functions


def class_names(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yields name and place of each class."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node.name, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_a_class_name_occurs_once_in_the_project():
    # Classes of test modules stand for those of users.
    folders = (*PACKAGES, "benchmarks", "docs", "examples", "java", "tests")
    paths = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.startswith("test_")
    ]
    texts = {
        path: re.findall(r"^\s*class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in paths
    }
    # Only files with a name that the texts have twice are parsed: a text may also be within a string.
    counts = Counter(name for names in texts.values() for name in names)
    twice = [path for path, names in texts.items() if any(counts[name] > 1 for name in names)]
    places: dict[str, list[str]] = {}
    for name, place in class_names(twice):
        places.setdefault(name, []).append(place)
    assert {name: at for name, at in places.items() if len(at) > 1} == {}


def in_a_fresh_interpreter(code: str) -> dict[str, object]:
    script = f"import json, sys, time\nstart = time.process_time()\n{code}\nseconds = time.process_time() - start\n"
    script += "print(json.dumps({'seconds': seconds, 'loaded': sorted(m for m in sys.modules if '.' not in m)}))"
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    answer: dict[str, object] = json.loads(process.stdout)
    return answer


def test_the_page_of_the_architecture_names_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = [
        f"/{path.relative_to(ROOT).as_posix()}"
        for top in (*PACKAGES, "java")
        for path in (ROOT / top).rglob("*")
    ]
    names = re.findall(r"`([\w/]+\.(?:py|java)|[\w/]+(?=/`))", page)
    absent = {
        name
        for name in names
        if not any(file.endswith(f"/{name}") for file in [*files, *SINGLE_FILES])
    }
    assert absent == set(), "rename them in docs/architecture.md, too"


def test_importing_any_module_loads_no_lance():
    # Spark's Python daemon imports these modules before it forks, and Lance's threads do not survive a fork.
    everything = "".join(f"import {name_of(path)}\n" for path in modules()) + "import pyspark_lance"
    loaded = in_a_fresh_interpreter(everything)["loaded"]
    assert isinstance(loaded, list)
    assert "pyspark" in loaded, "the check sees what is loaded"
    assert "lance" not in loaded
    assert "pylance" not in loaded


def test_importing_the_runtime_loads_neither_spark_nor_lance():
    names = [name_of(path) for path in modules() if name_of(path).startswith("udf_runtime")]
    loaded = in_a_fresh_interpreter("".join(f"import {name}\n" for name in names))["loaded"]
    assert isinstance(loaded, list)
    assert {"pyspark", "py4j", "lance", "lance_spark"} & set(loaded) == set()


@pytest.mark.parametrize("module", ["lance_spark", "pyspark_lance"])
def test_the_import_takes_less_than_a_second(module: str):
    # The best of three in processor time, to exclude effects of other processes.
    seconds = min(
        float(str(in_a_fresh_interpreter(f"import {module}")["seconds"])) for _ in range(3)
    )
    assert seconds < 1.0
