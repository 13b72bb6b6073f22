"""Computes sizes, thumbnails and perceptual hashes of images: the code of docs/images.md.

    python examples/recipes/images.py

Needs `pip install 'lance-spark[models]'`, and writes the folder `gallery`.
"""

import io
from typing import Annotated, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Columns, skip_on_error, udf


def draw(seed: int) -> Image.Image:
    picture = Image.new("RGB", (320, 240), "white")
    pen = ImageDraw.Draw(picture)
    for x, y, size, *color in np.random.default_rng(seed).integers(0, 256, (12, 6)).tolist():
        pen.ellipse((x, y, x + size, y + size), fill=tuple(color))
    return picture


def encode(picture: Image.Image, format: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, format)
    return file.getvalue()


rows: list[dict[str, object]] = [
    {"name": f"{n}.png", "image": encode(draw(n), "PNG")} for n in range(40)
]
rows += [
    {"name": f"{n}.jpg", "image": encode(draw(n).resize((200, 150)), "JPEG")}
    for n in range(0, 40, 10)
]
rows += [{"name": "broken.png", "image": b"\x89PNG\r\n\x1a\n"}]

spark = lance_spark.configure(SparkSession.builder).getOrCreate()
db = lance_spark.connect("gallery", spark)
blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
schema = pa.schema([("name", pa.string())]).append(blob)
images = db.create_table("images", rows, schema=schema, mode="overwrite")


class Header(NamedTuple):
    format: str
    width: int
    height: int


@udf(on_error=skip_on_error())
def header(image: BinaryIO) -> Columns[Header]:
    with Image.open(image) as picture:
        return Header(picture.format or "", picture.width, picture.height)


images.add_columns(header)
result = images.backfill("width")
assert (result.rows_computed, result.rows_skipped) == (44, 1)
[error] = images.get_errors(result.job_id)
assert error.error_type == "PIL.UnidentifiedImageError"


class Look(NamedTuple):
    thumbnail: bytes
    hash: Annotated[list[int], pa.list_(pa.uint8(), 8)]


@udf(on_error=skip_on_error(), checkpoint_size=256)
def look(image: bytes) -> Columns[Look]:
    picture = Image.open(io.BytesIO(image)).convert("RGB")
    grey = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.LANCZOS), np.int16)
    bits = grey[:, 1:] > grey[:, :-1]
    picture.thumbnail((96, 96))
    return Look(encode(picture, "PNG"), np.packbits(bits).tolist())


images.add_columns(look)
images.backfill("hash")
[copy] = images.search(None).select(["hash"]).where("name = '20.jpg'").to_list()
query = np.array(copy["hash"], np.uint8)
hits = images.search(query).distance_type("hamming").select(["name"]).limit(3).to_list()
assert {hit["name"] for hit in hits[:2]} == {"20.jpg", "20.png"}
assert hits[1]["_distance"] <= 4 < hits[2]["_distance"]
images.preview(3, ["name", "format", "width", "height", "thumbnail"])
