"""Chunks documents, embeds the chunks, and keeps both up to date: the code of docs/documents.md.

    python examples/recipes/documents.py

Needs `pip install 'lance-spark[models]'`, and writes the folder `shelf`.
"""

import difflib
import heapq
import random
import statistics
import string
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from sklearn.feature_extraction.text import HashingVectorizer

import lance_spark
from lance_spark import chunker, udf

spark = lance_spark.configure(SparkSession.builder).getOrCreate()
db = lance_spark.connect("shelf", spark)
modules = [difflib, heapq, random, statistics, string]
rows: list[dict[str, object]] = [
    {"title": module.__name__, "text": module.__doc__} for module in modules
]
documents = db.create_table("documents", rows, mode="overwrite")


class Passage(NamedTuple):
    first_word: int
    passage: str


@chunker
def passages(text: str) -> Iterator[Passage]:
    words = text.split()
    for start in range(0, len(words), 30):
        yield Passage(start, " ".join(words[start : start + 40]))


chunks = db.create_udtf_view(
    "passages", source=documents.search(None).select(["title"]), udtf=passages
)
assert chunks.refresh().rows_chunked == 5

SIZE = 256


@udf(data_type=pa.list_(pa.float32(), SIZE), batch_size=256)
class EmbedDocument:
    def setup(self) -> None:
        self.model: Any = HashingVectorizer(n_features=SIZE, stop_words="english")

    def __call__(self, passage: pa.Array) -> pa.Array:
        vectors = self.model.transform(passage.to_pylist()).toarray()
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), SIZE)


embed = EmbedDocument()
chunks.add_columns({"vector": embed})
assert chunks.backfill("vector").rows_computed == chunks.count_rows()


def search(question: str) -> list[str]:
    vector = embed(pa.array([question])).to_numpy(zero_copy_only=False)[0]
    return [hit["title"] for hit in chunks.search(vector).select(["title"]).limit(2).to_list()]


assert search("a priority queue with the smallest element first")[0] == "heapq"


def follow() -> tuple[int, int]:
    refreshed, filled = chunks.refresh(), chunks.backfill("vector")
    return refreshed.rows_chunked, filled.rows_computed


documents.add(
    [{"title": "tea", "text": "Pour boiling water over the leaves, and wait for three minutes."}]
)
documents.update("title = 'string'", {"text": "Constants and templates of texts."})
documents.delete("title = 'random'")
assert follow() == (2, 2)
assert search("tea leaves and boiling water")[0] == "tea"
assert follow() == (0, 0)
