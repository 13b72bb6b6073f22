"""The first rows of a table in a notebook."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest

from lance_spark import ColumnNotFoundError, Connection, OptionError, Table
from lance_spark.table import preview


def image(size: int, kind: str) -> bytes:
    pil = pytest.importorskip("PIL.Image", reason="makes the images")
    noise = np.random.default_rng(size).integers(0, 255, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    pil.fromarray(noise).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def table(db: Connection) -> Table:
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("picture", pa.binary()),
            blob,
            ("v", pa.list_(pa.float32(), 300)),
            ("text", pa.string()),
        ]
    )
    new_table = db.create_table("t", schema=schema)
    new_table.add(
        [
            {
                "id": i,
                "picture": [image(300, "PNG"), image(300, "JPEG"), b"no image"][i % 3],
                "blob": [image(200, "WEBP"), None, b"x" * (5 << 20)][i % 3],
                "v": [math.sin(at / 10) for at in range(299)] + [math.inf] if i else None,
                "text": "<b>bold</b>",
            }
            for i in range(12)
        ]
    )
    return new_table


def cells(page: str) -> list[list[str]]:
    rows = page.partition("<tbody>")[2].partition("</tbody>")[0].split("<tr>")[1:]
    return [[cell.partition("</td>")[0] for cell in row.split("<td>")[1:]] for row in rows]


def test_images_and_vectors_are_pictures(table: Table):
    page = table.preview()._repr_html_()
    rows = cells(page)
    assert len(rows) == 10 and [row[0] for row in rows] == [str(i) for i in range(10)]
    for row in rows[:2]:
        assert row[1].startswith('<img src="data:image/png;base64,')
    assert (
        rows[2][1] == "&lt;8 bytes&gt;"
        and rows[0][2].startswith("<img src=")
        and rows[1][2] == "None"
    )
    assert rows[2][2] == "&lt;5,242,880 bytes&gt;"  # too large to be read
    assert rows[0][3] == "None" and len(page) < 1_000_000
    curve = ET.fromstring(rows[1][3])
    points = curve[1].attrib["points"].split()
    assert 64 <= len(points) <= 128 and "300 elements" in (curve[0].text or "")
    assert rows[0][4] == "&lt;b&gt;bold&lt;/b&gt;"


def test_without_pillow_small_images_are_shown_as_they_are(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        preview, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name))
    )
    rows = cells(table.preview(2, ["picture", "blob"])._repr_html_())
    assert rows[0][0].endswith("bytes&gt;")  # 270 KiB of noise
    assert rows[1][0].startswith('<img src="data:image/jpeg;base64,') and rows[0][1].startswith(
        "<img"
    )


def test_on_a_terminal_it_is_text(table: Table):
    lines = repr(table.preview(3, ["id", "picture", "text"])).splitlines()
    assert lines[0] == f"t, version {table.version}" and lines[1].split() == [
        "id",
        "picture",
        "text",
    ]
    assert lines[4] == "2   <8 bytes>        <b>bold</b>"


def test_arguments_of_a_wrong_preview_are_refused(table: Table, tmp_path: Path):
    for n in (0, 101, True, "3"):
        with pytest.raises(OptionError, match=r"from 1 to 100|a whole number"):
            table.preview(n)  # type: ignore[arg-type]
    with pytest.raises(ColumnNotFoundError, match="'nope'"):
        table.preview(columns=["nope"])
    damaged: Any = preview._render_image(b"\x89PNG\r\n\x1a\n" + b"broken" * 20_000)
    assert damaged is None
    assert table.preview(100).rows[11][0] == 11


def test_a_date_that_python_has_no_object_for_is_shown_as_a_number(db: Connection) -> None:
    days = pa.array([3_663_500, 1], pa.int32()).cast(pa.date32())
    far = db.create_table(
        "far", pa.table({"day": days, "days": pa.StructArray.from_arrays([days], ["day"])})
    )
    for text in (str(far.preview()), far.preview()._repr_html_(), far._repr_html_()):
        assert "3663500 (date32[day])" in text and "? (struct&lt;" in text.replace("<", "&lt;")
        assert "1970-01-02" in text
