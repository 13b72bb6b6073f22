"""Scores rows with models of scikit-learn and LightGBM: the code of docs/scores.md.

    python examples/recipes/scores.py

Needs `pip install 'lance-spark[models]'`, and writes the folder `cellar`.
"""

from typing import Any, NamedTuple

import joblib
import numpy as np
import pyarrow as pa
from lightgbm import LGBMClassifier
from pyspark.sql import SparkSession
from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingClassifier

import lance_spark
from lance_spark import Columns, UnpackedUDF, udf

spark = lance_spark.configure(SparkSession.builder).getOrCreate()
db = lance_spark.connect("cellar", spark)
data: Any = load_wine(as_frame=True)
rows = data.frame[["alcohol", "flavanoids", "proline"]].assign(
    grower=data.target_names[data.target]
)
wines = db.create_table("wines", rows, mode="overwrite")


class Score(NamedTuple):
    label: str
    probability: float


class Classify:
    def setup(self, artifacts: dict[str, str]) -> None:
        self.model = joblib.load(artifacts["model"])

    def __call__(
        self, alcohol: pa.Array, flavanoids: pa.Array, proline: pa.Array
    ) -> Columns[Score]:
        features = np.column_stack(
            [column.to_numpy(zero_copy_only=False) for column in (alcohol, flavanoids, proline)]
        )
        shares = self.model.predict_proba(features)
        labels = self.model.classes_[shares.argmax(axis=1)]
        return pa.StructArray.from_arrays(
            [pa.array(labels), pa.array(shares.max(axis=1))], ["label", "probability"]
        )


training = rows[::2]
features, labels = training.drop(columns="grower").to_numpy(), training["grower"].to_numpy(object)
model = HistGradientBoostingClassifier(random_state=0).fit(features, labels)
joblib.dump(model, "model.joblib")
classify = udf(Classify, artifacts={"model": "model.joblib"}, batch_size=4096)
wines.add_columns(classify())
assert wines.backfill("label").rows_computed == 178
assert wines.count_rows("label = grower") > 160

wines.add({"alcohol": [13.2, 12.1], "flavanoids": [None, 0.8], "proline": [1050.0, 500.0]})
wines.update("proline > 1500", {"proline": 1500.0})
changed = wines.count_rows("proline = 1500")
assert wines.backfill("label", stale=True).rows_computed == 2 + changed

challenger = LGBMClassifier(num_threads=1, min_child_samples=5, random_state=0).fit(
    features, labels
)
joblib.dump(challenger, "challenger.joblib")
classify = udf(Classify, artifacts={"model": "challenger.joblib"}, batch_size=4096)
wines.add_columns(UnpackedUDF(classify(), prefix="new_"))
assert wines.backfill("new_label").rows_computed == 180
print(wines.search(None).where("label != new_label").to_pandas())
