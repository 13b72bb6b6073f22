"""Embeds docstrings with scikit-learn, and searches the vectors: the code of docs/embeddings.md.

    python examples/recipes/embeddings.py

Needs `pip install 'lance-spark[models]'`, and writes the folder `library`.
"""

import importlib
import inspect
from datetime import timedelta

import pyarrow as pa
from pyspark.sql import SparkSession
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

import lance_spark
from lance_spark import udf


def read_docstrings(module: str) -> list[dict[str, object]]:
    functions = inspect.getmembers(importlib.import_module(module), inspect.isfunction)
    texts = {
        f"{module}.{name}": inspect.getdoc(function)
        for name, function in functions
        if name[0] != "_"
    }
    return [{"name": name, "text": text} for name, text in texts.items() if text]


spark = lance_spark.configure(SparkSession.builder).getOrCreate()
db = lance_spark.connect("library", spark)
modules = [
    "calendar",
    "difflib",
    "heapq",
    "json",
    "os.path",
    "random",
    "shutil",
    "statistics",
    "textwrap",
]
rows = [row for module in modules for row in read_docstrings(module)]
docs = db.create_table("docs", rows, mode="overwrite")

SIZE = 32


def fit(texts: list[str]) -> Pipeline:
    counts = HashingVectorizer(n_features=4096, stop_words="english", alternate_sign=False)
    return make_pipeline(counts, TruncatedSVD(SIZE, random_state=0), Normalizer()).fit(texts)


model = fit(docs.to_pandas()["text"].to_list())


@udf(data_type=pa.list_(pa.float32(), SIZE), batch_size=512)
class Embed:
    def __init__(self, model: Pipeline) -> None:
        self.model = model

    def __call__(self, text: pa.Array) -> pa.Array:
        vectors = self.model.transform(text.to_pylist())
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), SIZE)


embed = Embed(model)
docs.add_columns({"embedding": embed})
result = docs.backfill("embedding")
assert (result.status, result.rows_computed) == ("DONE", len(rows))

docs.create_index(vector_column_name="embedding", index_type="IVF_FLAT", num_partitions=2)


def search(question: str) -> list[str]:
    vector: list[float] = embed(pa.array([question])).to_numpy(zero_copy_only=False)[0].tolist()
    hits = docs.search(vector).nprobes(2).select(["name"]).limit(3).to_list()
    return [hit["name"] for hit in hits]


assert search("close matches of a word")[0] == "difflib.get_close_matches"
assert "statistics.fmean" in search("arithmetic mean of floats")

docs.add([{"name": "new", "text": "Return the bounding box of a polygon."}])
docs.update("name = 'heapq.merge'", {"text": "Merge sorted inputs into a single sorted output."})
assert docs.backfill("embedding", stale=True).rows_computed == 2
docs.optimize_indices()  # adds the new vectors to the index

with docs.watch("embedding", trigger=timedelta(minutes=1)):
    pass  # the column stays up to date while the block runs

new_model = fit(docs.to_pandas()["text"].to_list())
docs.alter_columns({"path": "embedding", "udf": Embed(new_model)})
assert docs.plan_backfill("embedding").total_rows_pending == docs.count_rows()
