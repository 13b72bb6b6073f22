"""The lines of docs/libraries.md for further libraries, each with its newest release from PyPI."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lance_spark

PAGE = Path(__file__).parents[3] / "docs" / "libraries.md"

LINES = dict(
    re.findall(
        r"^\| ([A-Z]?[\w ,`-]+?) \| `((?:lance\.torch|datasets|ray|daft)\..*)` \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
)

LIBRARIES = {
    "torch": (
        ["torch"],
        "import lance.torch.data",
        "[n for batch in rows for n in batch['id'].tolist()]",
    ),
    "Hugging Face datasets": (["datasets"], "import datasets", "rows['id']"),
    "Ray Data": (
        ["ray[data]"],
        "import ray; ray.init(num_cpus=1, include_dashboard=False)",
        "[row['id'] for row in rows.take_all()]",
    ),
    "Daft, with the package `daft-lance`": (
        ["daft", "daft-lance"],
        "import daft",
        "rows.to_pydict()['id']",
    ),
}
"""The packages, the import, and the ids of the rows, by name of the library on the page."""


def test_each_line_of_the_page_has_a_library() -> None:
    assert LINES.keys() == LIBRARIES.keys()


@pytest.mark.long
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_line_of_the_page_reads_the_table(library: str, tmp_path: Path) -> None:
    packages, start, ids = LIBRARIES[library]
    folder = tmp_path / "packages"
    uv = Path(sys.executable).with_name("uv")
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--target",
        folder,
        *packages,
    ]
    subprocess.run(install, check=True, capture_output=True)
    table = lance_spark.connect(tmp_path).create_table(
        "t", [{"id": i, "vector": [i / 2, 1.0]} for i in range(100)]
    )
    script = f"""
import sys
sys.path.append({str(folder)!r})  # the packages of this environment come first
import lance_spark
{start}
table = lance_spark.open_table({table.uri!r})
rows = {LINES[library]}
print(sorted({ids}) == list(range(100)))
"""
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": f"{PAGE.parents[1]}:{folder}",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr
