# %% [markdown]
# # Pictures: from files to a search by picture
#
# Photographs from scikit-image become a Lance table with blobs. Functions stored with the table
# compute thumbnails and colours. A view keeps the tiles of each picture, with an index for a search
# by picture.
#
# This notebook has the percent format: VS Code, PyCharm and Jupyter (with jupytext) open it, and
# `python examples/pictures.py` runs it. It needs `pip install 'lance-spark[examples]'`, and no
# network.

# %%
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import skimage.data
import skimage.io
from PIL import Image

import lance_spark
from udf_runtime import chunker, udf

folder = Path(tempfile.mkdtemp(prefix="lance-spark-pictures-"))
db = lance_spark.connect(str(folder))

# %% [markdown]
# ## Ingest
#
# The bytes of a file are a blob. Queries read blobs only on request. Three files are held back for
# later.

# %%
files = sorted(
    path for path in Path(skimage.data.__file__).parent.iterdir() if path.suffix in (".png", ".jpg")
)
photographs = [path for path in files if min(skimage.io.imread(path).shape[:2]) >= 200]
late = [path for path in photographs if path.stem in ("coffee", "coins", "grass")]
blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
pictures = db.create_table("pictures", schema=pa.schema([("name", pa.string())]).append(blob))
pictures.add(
    [{"name": path.stem, "image": path.read_bytes()} for path in photographs if path not in late]
)
print(f"{pictures.count_rows()} pictures")

# %% [markdown]
# ## Thumbnails and colours
#
# A function of a row becomes a column. `colours` is an embedding without a model: a histogram over
# 64 colours. The roots of its shares make the L2 distance of two histograms their Hellinger
# distance.


# %%
@udf(data_type=pa.binary())
def thumbnail(image: bytes) -> bytes:
    """Returns a picture as a PNG of at most 96 by 96 pixels."""
    small, out = Image.open(io.BytesIO(image)).convert("RGB"), io.BytesIO()
    small.thumbnail((96, 96))
    small.save(out, "PNG")
    return out.getvalue()


@udf(data_type=pa.list_(pa.float32(), 64))
def colours(image: bytes) -> np.ndarray:
    """Returns the roots of the shares of 64 colours."""
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=np.int64) // 64
    counts = np.bincount((pixels @ [16, 4, 1]).ravel(), minlength=64)
    roots: np.ndarray = np.sqrt(counts / counts.sum()).astype(np.float32)
    return roots


pictures.add_columns({"thumbnail": thumbnail, "colours": colours})
print(pictures.backfill("thumbnail"))
print(pictures.backfill("colours"))
pictures.preview(5, ["name", "thumbnail", "colours"])

# %% [markdown]
# ## Chunks
#
# A view cuts each picture into tiles of 128 by 128 pixels, with a row per tile. The view gets the
# same embedding for its tiles.


# %%
class Tile(NamedTuple):
    """A tile, and its position in the picture."""

    x: int
    y: int
    tile: bytes


@chunker
def tiles(image: bytes) -> Iterator[Tile]:
    """Yields the complete tiles of a picture."""
    whole = Image.open(io.BytesIO(image)).convert("RGB")
    for y in range(0, whole.height - 127, 128):
        for x in range(0, whole.width - 127, 128):
            out = io.BytesIO()
            whole.crop((x, y, x + 128, y + 128)).save(out, "PNG")
            yield Tile(x, y, out.getvalue())


parts = db.create_udtf_view("tiles", source=pictures.search(None).select(["name"]), udtf=tiles)
print(parts.refresh())
parts.add_columns({"colours": (colours, ["tile"])})
print(parts.backfill("colours"))

# %% [markdown]
# ## Index, and search by picture
#
# The query is a part of a picture across four tiles. The stored function computes its colours too:
# a UDF is still a function.

# %%
parts.create_index(vector_column_name="colours", index_type="IVF_FLAT", num_partitions=4)
cat_crop = io.BytesIO()
Image.fromarray(skimage.data.chelsea()).crop((160, 60, 288, 188)).save(cat_crop, "PNG")


def nearest(table: lance_spark.Table, picture: bytes) -> pa.Table:
    """Returns the eight tiles with the nearest colours to a picture."""
    search = table.search(colours(picture), vector_column_name="colours").nprobes(4).limit(8)
    return search.select(["name", "x", "y", "tile"]).to_arrow()


cat_tiles = nearest(parts, cat_crop.getvalue())
print("the nearest tiles are of", cat_tiles["name"].to_pylist())

# %% [markdown]
# ## New pictures
#
# The table gets the remaining pictures, and loses one. A refresh chunks new pictures and removes
# the tiles of deleted pictures. A backfill computes the colours of new tiles only, and
# `optimize_indices` adds the tiles to the index.

# %%
pictures.add([{"name": path.stem, "image": path.read_bytes()} for path in late])
pictures.delete("name = 'retina'")
print(pictures.backfill("thumbnail"))
print(pictures.backfill("colours"))
print(parts.refresh())
print(parts.backfill("colours"))
parts.optimize_indices()
coffee = io.BytesIO()
Image.fromarray(skimage.data.coffee()).crop((64, 64, 192, 192)).save(coffee, "PNG")
again = nearest(parts, coffee.getvalue())
print("the nearest tiles are of", again["name"].to_pylist())

# %% [markdown]
# ## A picture of the results

# %%
figure, axes = plt.subplots(2, 9, figsize=(14, 4.2))
for row, query, tiles_found in ((axes[0], cat_crop, cat_tiles), (axes[1], coffee, again)):
    titles = [
        "asked for",
        *(f"{tile['name']}\n{tile['_distance']:.3f}" for tile in tiles_found.to_pylist()),
    ]
    images: list[Any] = [query.getvalue(), *tiles_found["tile"].to_pylist()]
    for axis, title, data in zip(row, titles, images, strict=True):
        axis.imshow(Image.open(io.BytesIO(data)))
        axis.set_title(title, fontsize=8)
        axis.axis("off")
figure.tight_layout()
figure.savefig(folder / "found.png")
print(f"{folder}/found.png")
