"""Each recipe of the guides is a script, and its values equal those of the bare model."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from lance_spark import Table
from tests.support.pages import python_blocks

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "recipes").glob("*.py"))
INSTALL = "pip install -e .[models]"

Recipe = Callable[[str], dict[str, Any]]


@pytest.fixture
def recipe(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Runs a recipe in an empty folder, and returns its variables."""
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(ROOT / "examples" / "recipes" / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_page_of_a_recipe_has_the_code_of_its_script(script: Path):
    """tests/test_docs.py leaves these pages out."""
    blocks = python_blocks(ROOT / "docs" / f"{script.stem.replace('_', '-')}.md")
    _, _, code = script.read_text(encoding="utf-8").split('"""', 2)
    assert non_blank_lines("".join(block for _, block in blocks)) == non_blank_lines(code)


def non_blank_lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


def vectors(table: Table, column: str) -> np.ndarray:
    return np.stack(table.to_arrow()[column].to_numpy(zero_copy_only=False))


def test_embeddings_equal_the_vectors_of_the_model(recipe: Recipe):
    pytest.importorskip("sklearn", reason=INSTALL)
    names = recipe("embeddings")
    docs, model = names["docs"], names["model"]
    rows = docs.to_arrow()
    assert {"new", "heapq.merge", "json.dumps"} <= set(rows["name"].to_pylist())
    stored = vectors(docs, "embedding")
    np.testing.assert_allclose(stored, model.transform(rows["text"].to_pylist()), atol=1e-6)

    question = "merge sorted inputs"
    distances = ((stored - model.transform([question])) ** 2).sum(axis=1)
    assert names["search"](question) == [rows["name"][at].as_py() for at in np.argsort(distances)[:3]]
