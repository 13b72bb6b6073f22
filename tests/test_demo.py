"""The demo tells the truth: this test computes the printed facts about a part of the standard library by other
means.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lance
import pytest

from tests.support.java_classes import JVM_OPTIONS
from tests.support.terminal import OF_SPARK

ROOT = Path(__file__).parents[1]
LIMIT = 120
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a file."""

    size: int
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] | None
    classes: int
    imports: frozenset[str]
    is_text: bool = True
    branches: int | None = None
    loops: int | None = None


def sampled_paths() -> list[Path]:
    """The files of `--limit`: `.py` files of the standard library without its test cases, sorted by name, at even
    distances.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "__pycache__"}
    every = [path.relative_to(root) for path in root.rglob("*.py")]
    names = sorted(
        str(path)
        for path in every
        if not skipped & set(path.parts) and not str(path).startswith("test/test_")
    )
    return [root / names[i * len(names) // LIMIT] for i in range(LIMIT)]


def facts_of(path: Path) -> Facts:
    size = path.stat().st_size
    is_text = False
    try:
        with warnings.catch_warnings(), tokenize.open(path) as stream:
            warnings.simplefilter("ignore")
            text = stream.read()
            is_text = True
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return Facts(size=size, functions=None, classes=0, imports=frozenset(), is_text=is_text)
    nodes = list(ast.walk(tree))
    plain = {
        alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    froms = {
        str(node.module).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.ImportFrom) and not node.level
    }
    return Facts(
        size=size,
        functions=[node for node in nodes if isinstance(node, DEFINITIONS)],
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        imports=frozenset(plain | froms),
        branches=sum(isinstance(node, (ast.If, ast.IfExp, ast.Match)) for node in nodes),
        loops=sum(isinstance(node, (ast.For, ast.AsyncFor, ast.While)) for node in nodes),
    )


def check_views(
    numbers: Callable[[str], list[float]], paths: list[Path], facts: list[Facts]
) -> None:
    """Asserts the printed facts about the views of functions."""
    texts = {
        path: fact
        for path, fact in zip(paths, facts, strict=True)
        if fact.is_text and fact.size >= 100
    }
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = {str(path.relative_to(root)): fact for path, fact in texts.items()}
    single = {name: fact for name, fact in modules.items() if "/" not in name}
    email = {name: fact for name, fact in modules.items() if name.startswith("email/")}

    def parsed(some: dict[str, Facts]) -> list[int]:
        return [len(fact.functions) for fact in some.values() if fact.functions is not None]

    calls = r"([\d,]+) files chunked, ([\d,]+) functions embedded; ([\d,]+) vectors"
    first = sum(parsed(single))
    assert numbers(f"first: {calls}") == [len(parsed(single)), first, first]
    both = first + sum(parsed(email))
    assert numbers(f"a package was appended: {calls}") == [len(parsed(email)), both - first, both]
    names = sorted({**single, **email})
    calls_between = (
        both - sum(len(modules[name].functions or ()) for name in (names[0], names[-1])) + 1
    )
    assert numbers(f"one file was changed, one deleted: {calls}") == [1, 1, calls_between]
    assert numbers(f"the table was compacted: {calls}") == [0, 0, calls_between]


def check_sql(numbers: Callable[[str], list[float]], paths: list[Path]) -> None:
    """Asserts the printed facts about the SQL statements."""
    names = [str(path.relative_to(sysconfig.get_paths()["stdlib"])) for path in paths]
    packages = Counter(
        name.partition("/")[0] if "/" in name else "(single modules)" for name in names
    )
    large = sum(count >= len(names) / len(packages) for count in packages.values())
    assert numbers(r"all_packages +large_ones +mean\n +(\d+) +(\d+) +[\d,]+\n") == [
        len(packages),
        large,
    ]
    assert numbers(r"\n +4 +delete +0 +(\d+)\n") == [len(packages) - large]


@pytest.mark.long
@pytest.mark.slow
def test_what_the_demo_prints_is_true(tmp_path: Path):
    command = [
        sys.executable,
        str(ROOT / "examples" / "stdlib_features.py"),
        "--limit",
        str(LIMIT),
        "--keep",
        str(tmp_path),
    ]
    # Not from the project's folder, and not through an activated environment: as a user's shell may be.
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_"))
    }
    environment["SPARK_SUBMIT_OPTS"] = JVM_OPTIONS
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr[-4000:]
    printed = process.stdout

    def numbers(pattern: str) -> list[float]:
        match = re.search(pattern, printed)
        assert match is not None, f"{pattern} is not in\n{printed}"
        return [float(text.replace(",", "")) for text in match.groups()]

    paths = sampled_paths()
    facts = [facts_of(path) for path in paths]
    late = range(19, LIMIT, 20)
    early = [fact for i, fact in enumerate(facts) if i not in late]
    large_files = [fact for fact in facts if fact.size >= 100]

    assert numbers(r"([\d,]+) files of Python") == [len(early)]
    # Timing decides how many rows the deletion reached before the commit of the backfill.
    assert sum(
        numbers(r"([\d,]+) rows in \d+ fragments have values; (\d+) more were deleted")
    ) == len(early)
    # The tiny late files were all appended before the deletion, or all after it.
    assert numbers(r"meanwhile (\d+) rows were appended and (\d+) deleted") == [
        len(late),
        len(facts) - len(large_files),
    ]
    unchanged, before = numbers(
        r"(\d+) of the (\d+) data files that were there before are untouched"
    )
    assert unchanged == before > 0

    functions = [function for fact in large_files for function in fact.functions or ()]
    documented = sum(ast.get_docstring(function) is not None for function in functions) / len(
        functions
    )
    row = numbers(
        r"files +functions +classes +documented +deepest\n +([\d,]+) +([\d,]+) +([\d,]+) +([\d.]+) +\d+"
    )
    assert row == [
        len(large_files),
        len(functions),
        sum(fact.classes for fact in large_files),
        pytest.approx(documented, abs=0.006),
    ]

    imports = Counter(name for fact in large_files for name in fact.imports)
    expected = sorted(imports.items(), key=lambda item: (-item[1], item[0]))[:5]
    section = printed.split("what most files import")[1]
    assert re.findall(r"^ +(\w+) +(\d+)$", section, re.MULTILINE)[:5] == [
        (name, str(count)) for name, count in expected
    ]

    assert numbers(r"(\d+) of (\d+) rows, picked by a hash") == [50, 50]
    no_python = sum(fact.is_text and fact.branches is None for fact in large_files)
    first, first_skipped = numbers(
        r"two fragments, to have a look: ([\d,]+) rows computed, (\d+) skipped"
    )
    rest, rest_skipped = numbers(r"the rest: ([\d,]+) rows computed, (\d+) skipped")
    assert numbers(r"to do +([\d,]+) of ([\d,]+) rows") == [len(large_files), len(large_files)]
    assert (first + rest, first_skipped + rest_skipped) == (len(large_files) - no_python, no_python)
    assert 0 < first < len(large_files)
    assert sum(int(count) for count in re.findall(r"\w+ of (\d+) files", printed)) == no_python

    check_views(numbers, paths, facts)

    check_sql(numbers, [path for path, fact in zip(paths, facts, strict=True) if fact.size >= 100])
    assert numbers(r"before: version 1, ([\d,]+) rows, path, package, size, text\n") == [len(early)]
    assert numbers(
        r"now: version \d+, ([\d,]+) rows, path, package, size, text, .*imports, branches, loops\n"
    ) == [len(large_files)]
    assert "explain: BatchScan lance" in printed
    plan = " ".join(printed.split("explain:")[1].split("\n\n")[0].split())
    assert "pushed: `size` > 50000" in plan, "the plan shows the filter that the scan got"
    assert "Traceback" not in OF_SPARK.sub("", process.stderr)

    columns = ["path", "functions", "branches", "loops"]
    table = lance.dataset(str(tmp_path / "stdlib.lance")).to_table(columns=columns).to_pylist()
    by_path = {
        str(path.relative_to(sysconfig.get_paths()["stdlib"])): fact
        for path, fact in zip(paths, facts, strict=True)
    }
    wrong = [
        row
        for row in table
        if row["functions"] != (None if (f := by_path[row["path"]].functions) is None else len(f))
    ]
    assert wrong == []
    flow = [(row["branches"], row["loops"]) for row in table]
    assert flow == [(by_path[row["path"]].branches, by_path[row["path"]].loops) for row in table]
