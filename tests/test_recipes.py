"""Each recipe of the guides is a script, and its values equal those of the bare model."""

from __future__ import annotations

import io
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from lance_spark import Table
from tests.support.chat_service import KEY, ChatService
from tests.support.pages import python_blocks

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "recipes").glob("*.py"))
INSTALL = "pip install -e .[models]"

Recipe = Callable[[str], dict[str, Any]]


@pytest.fixture
def recipe(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Runs a recipe in an empty folder, and returns its variables."""
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(
        str(ROOT / "examples" / "recipes" / f"{name}.py"), run_name="__main__"
    )


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


@pytest.mark.long
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
    assert names["search"](question) == [
        rows["name"][at].as_py() for at in np.argsort(distances)[:3]
    ]


def test_sizes_thumbnails_and_hashes_equal_those_of_pillow(recipe: Recipe):
    images = pytest.importorskip("PIL.Image", reason=INSTALL)
    names = recipe("images")
    rows = names["images"].to_arrow().drop(["image"]).to_pylist()
    files = {row["name"]: row["image"] for row in names["rows"]}
    assert len(rows) == len(files) == 45
    for row in rows:
        if row["name"] == "broken.png":
            assert {
                row[column] for column in ("format", "width", "height", "thumbnail", "hash")
            } == {None}
            continue
        picture = images.open(io.BytesIO(files[row["name"]]))
        assert (row["format"], row["width"], row["height"]) == (picture.format, *picture.size)
        grey = list(picture.convert("L").resize((9, 8), images.Resampling.LANCZOS).tobytes())
        bits = "".join(
            str(int(grey[9 * y + x + 1] > grey[9 * y + x])) for y in range(8) for x in range(8)
        )
        assert "".join(f"{byte:08b}" for byte in row["hash"]) == bits
        picture.thumbnail((96, 96))
        thumbnail = images.open(io.BytesIO(row["thumbnail"]))
        assert (thumbnail.format, thumbnail.tobytes()) == ("PNG", picture.tobytes())


@pytest.mark.long
def test_texts_in_images_equal_those_of_the_models(recipe: Recipe):
    rapidocr = pytest.importorskip(
        "rapidocr_onnxruntime", reason=f"{INSTALL}, on Python 3.12 or earlier"
    )
    names = recipe("ocr")
    read = rapidocr.RapidOCR(det_limit_side_len=320)
    expected = [
        [(text, score) for _, text, score in read(page)[0] or []] for page in names["pages"]
    ]
    rows = names["scans"].search(None).select(["lines", "confidence"]).to_list()
    assert [row["lines"] for row in rows] == [[text for text, _ in lines] for lines in expected]
    assert [len(lines) for lines in expected] == [2, 2, 0]
    assert rows[2]["confidence"] is None
    for row, lines in zip(rows[:2], expected[:2], strict=True):
        assert row["confidence"] == pytest.approx(min(score for _, score in lines), abs=1e-4)


@pytest.mark.long
def test_passages_and_their_vectors_follow_the_documents(recipe: Recipe):
    text = pytest.importorskip("sklearn.feature_extraction.text", reason=INSTALL)
    names = recipe("documents")
    documents = {row["title"]: row["text"] for row in names["documents"].to_arrow().to_pylist()}
    assert documents.keys() == {"difflib", "heapq", "statistics", "string", "tea"}
    expected = []
    for title, content in documents.items():
        words = content.split()
        expected += [(title, at, " ".join(words[at : at + 40])) for at in range(0, len(words), 30)]
    rows = names["chunks"].to_arrow()
    assert sorted(
        tuple(row.values()) for row in rows.select(["title", "first_word", "passage"]).to_pylist()
    ) == sorted(expected)
    model = text.HashingVectorizer(n_features=256, stop_words="english")
    bare = model.transform(rows["passage"].to_pylist()).toarray()
    np.testing.assert_allclose(vectors(names["chunks"], "vector"), bare, atol=1e-6)


@pytest.mark.long
def test_scores_equal_the_predictions_of_the_models(recipe: Recipe):
    pytest.importorskip("sklearn", reason=INSTALL)
    pytest.importorskip("lightgbm", reason=INSTALL)
    names = recipe("scores")
    rows = names["wines"].to_pandas()
    features = rows[["alcohol", "flavanoids", "proline"]].to_numpy()
    assert np.isnan(features).sum() == 1 and (features[:, 2] == 1500).sum() == names["changed"] > 0
    for model, prefix in ((names["model"], ""), (names["challenger"], "new_")):
        assert (rows[f"{prefix}label"] == model.predict(features)).all()
        np.testing.assert_allclose(
            rows[f"{prefix}probability"], model.predict_proba(features).max(axis=1)
        )


def label_of(message: str) -> str:
    """Stands for the model of the service."""
    words = {
        "parcel": "Delivery",
        "cancel": "cancellation\n",
        "thank": "praise",
        "invoice": "billing",
    }
    return (
        "no idea"
        if "(13)" in message
        else next(label for word, label in words.items() if word in message)
    )


@pytest.mark.long
def test_labels_come_from_a_service_with_limits_and_errors(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("httpx", reason=INSTALL)
    failures = {"(4)": [503, 429], "(20)": [500]}

    def fail(message: str, number: int) -> int:
        statuses = next((statuses for row, statuses in failures.items() if row in message), [])
        return statuses[number] if number < len(statuses) else 200

    key = tmp_path / "key"
    key.write_text(f"{KEY}\n", encoding="utf-8")
    with ChatService(answer=label_of, fail=fail, latency_s=0.02).serve() as service:
        monkeypatch.setenv("OPENAI_BASE_URL", service.url)
        monkeypatch.setenv("OPENAI_KEY_FILE", str(key))
        names = recipe("labels")
    rows = names["messages"].to_arrow().to_pylist()
    assert {row["id"]: row["label"] for row in rows} == {
        row["id"]: None if row["id"] == 13 else label_of(row["text"]).strip().lower()
        for row in rows
    }
    # Each failure costs a further request, and each answer a single one.
    assert service.statuses == {200: 40, 429: 1, 503: 1, 500: 1}
    assert service.most_in_flight > 1
    [error] = names["messages"].get_errors(names["result"].job_id)
    assert (error.outcome, error.error_message) == ("skipped", "The service answered 'no idea'.")
    stored = b"".join(
        file.read_bytes() for file in (tmp_path / "inbox").rglob("*") if file.is_file()
    )
    assert KEY.encode() not in stored and str(key).encode() in stored
