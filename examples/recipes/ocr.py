"""Reads the text in images with ONNX models: the code of docs/ocr.md.

    python examples/recipes/ocr.py

Needs `pip install 'lance-spark[models]'` and Python 3.12 or earlier, and writes the folder `scans`.
"""

import io
from typing import NamedTuple

import pyarrow as pa
from PIL import Image, ImageDraw, ImageFont
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Columns, udf


def draw(*lines: str) -> bytes:
    page, file = Image.new("RGB", (240, 40 * len(lines) + 20), "white"), io.BytesIO()
    for place, line in enumerate(lines):
        ImageDraw.Draw(page).text(
            (12, 40 * place + 10), line, fill="black", font=ImageFont.load_default(26)
        )
    page.save(file, "PNG")
    return file.getvalue()


spark = lance_spark.configure(SparkSession.builder).getOrCreate()
db = lance_spark.connect("scans", spark)
pages = [draw("Invoice 2041", "Total 318.50"), draw("Receipt 77", "Coffee 3.20"), draw()]
rows: list[dict[str, object]] = [{"id": i, "image": page} for i, page in enumerate(pages)]
blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
scans = db.create_table(
    "scans", rows, schema=pa.schema([("id", pa.int64())]).append(blob), mode="overwrite"
)


class Reading(NamedTuple):
    lines: list[str]
    confidence: float | None


class Read:
    def setup(self) -> None:
        from rapidocr_onnxruntime import RapidOCR

        self.read = RapidOCR(det_limit_side_len=320)

    def __call__(self, image: bytes) -> Columns[Reading]:
        boxes, _ = self.read(image)
        scores = [float(score) for _, _, score in boxes or []]
        return Reading([text for _, text, _ in boxes or []], min(scores, default=None))


read = udf(Read, checkpoint_size=64)
scans.add_columns(read())
assert scans.backfill("lines").rows_computed == 3
print(scans.to_arrow()["lines"].to_pylist())
assert scans.count_rows("array_has_any(lines, ['Receipt77', 'Receipt 77'])") == 1
