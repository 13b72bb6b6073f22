"""The notebook on pictures runs as a script, and its results equal a comparison of all tiles."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import lance
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
def test_what_the_notebook_on_pictures_finds_is_true(tmp_path: Path):
    data = pytest.importorskip(
        "skimage.data", reason="has the pictures: pip install -e .[examples]"
    )
    images = pytest.importorskip("PIL.Image")
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_", "LANCE_"))
    }
    process = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "pictures.py")],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={**variables, "TMPDIR": str(tmp_path), "MPLBACKEND": "Agg"},
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr[-4000:]
    (plot,) = tmp_path.glob("*/found.png")
    assert images.open(io.BytesIO(plot.read_bytes())).width > 1000

    pictures = lance.dataset(str(plot.with_name("pictures.lance")))
    tiles = lance.dataset(str(plot.with_name("tiles.lance"))).to_table(
        columns=["name", "x", "y", "colours"]
    )
    folder = Path(data.__file__).parent
    files = {
        path.stem: path.read_bytes() for path in folder.iterdir() if path.suffix in (".png", ".jpg")
    }
    sizes = {name: images.open(io.BytesIO(file)).size for name, file in files.items()}
    names = pictures.to_table(columns=["name"])["name"].to_pylist()
    assert set(names) == {
        name for name, size in sizes.items() if min(size) >= 200 and name != "retina"
    }
    expected = {
        (name, x, y)
        for name in names
        for x in range(0, sizes[name][0] - 127, 128)
        for y in range(0, sizes[name][1] - 127, 128)
    }
    assert len(tiles) == len(expected)
    assert {
        (row["name"], row["x"], row["y"]) for row in tiles.drop(["colours"]).to_pylist()
    } == expected

    thumbnails = pictures.to_table(columns=["name", "thumbnail"]).to_pylist()
    assert all(max(images.open(io.BytesIO(row["thumbnail"])).size) == 96 for row in thumbnails)

    # The last search, after the refresh, without an index and without the functions of the notebook.
    whole = (
        np.asarray(images.open(io.BytesIO(files["coffee"])).convert("RGB"))[64:192, 64:192] // 64
    )
    shares, _ = np.histogramdd(whole.reshape(-1, 3), bins=(4, 4, 4), range=[(0, 4)] * 3)
    query = np.sqrt(shares.ravel() / shares.sum())
    vectors = np.stack(tiles["colours"].to_numpy(zero_copy_only=False))
    nearest = np.argsort(((vectors - query) ** 2).sum(axis=1))[:8]
    results = re.findall(r"the nearest tiles are of \[(.*)\]", process.stdout)
    assert len(results) == 2 and set(re.findall(r"'(\w+)'", results[0])) >= {"chelsea"}
    assert re.findall(r"'(\w+)'", results[1]) == [tiles["name"][int(at)].as_py() for at in nearest]
