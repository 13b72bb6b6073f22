"""First rows of a table for a notebook, with pictures: :class:`Preview`."""

from __future__ import annotations

import base64
import html
import io
import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from lance_spark.types.fields import is_blob, requested_columns
from lance_spark.types.leaves import displayed_values

if TYPE_CHECKING:
    import lance

_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
)
_CHARS = 80
_PIXELS = 96
_CURVE = (128, 24)
_SHORTEST_VECTOR = 8
_BLOB_BYTES = 4 << 20
_IMAGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first rows of a version, as text on a terminal and with pictures in a notebook.

    Attributes:
        name: Name of the table.
        version: The version.
        columns: Names of the columns.
        rows: Values, row by row. A blob is its bytes, or its size if the blob is too large.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        preview = books.preview(2)
        assert preview.rows == ((0, 0), (1, 10))
        ```
    """

    MOST_ROWS: ClassVar[int] = 100

    name: str
    version: int
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(name: str, dataset: lance.LanceDataset, n: int, columns: list[str]) -> Preview:
        """Reads the first rows of a version."""
        schema = dataset.schema
        fields = [schema.field(column) for column in columns]
        plain = [field.name for field in fields if not is_blob(field)]
        table = dataset.scanner(
            columns=requested_columns(plain), limit=n, with_row_address=True
        ).to_table()
        addresses: list[int] = table["_rowaddr"].to_numpy().tolist()
        values = {
            field.name: _read_blobs(dataset, field.name, addresses)
            if is_blob(field)
            else displayed_values(table[field.name])
            for field in fields
        }
        rows = zip(*(values[column] for column in columns), strict=True)
        return Preview(name=name, version=dataset.version, columns=tuple(columns), rows=tuple(rows))

    def __repr__(self) -> str:
        cells = [list(self.columns), *([_shorten(value) for value in row] for row in self.rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in cells
        ]
        return "\n".join(
            [f"{self.name}, version {self.version}", *(line.rstrip() for line in lines)]
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_render_cell(value)}</td>" for value in row) + "</tr>"
            for row in self.rows
        )
        title = f"{html.escape(self.name)}, version {self.version}"
        return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


@dataclass(frozen=True, slots=True)
class _Large:
    """A blob that is too large to read."""

    size: int

    def __str__(self) -> str:
        return f"<{self.size:,} bytes>"


def _read_blobs(
    dataset: lance.LanceDataset, column: str, addresses: list[int]
) -> list[bytes | _Large | None]:
    """Returns the bytes of small blobs, and the sizes of large blobs."""
    values: list[bytes | _Large | None] = []
    for file in dataset.take_blobs(column, addresses=addresses) if addresses else ():
        if file is None:
            values.append(None)
            continue
        with file:
            size = file.size()
            values.append(_Large(size) if size > _BLOB_BYTES else file.read())
    return values


def _render_cell(value: object) -> str:
    if isinstance(value, bytes):
        return _render_image(value) or html.escape(_shorten(value))
    if (
        isinstance(value, list)
        and len(value) >= _SHORTEST_VECTOR
        and all(isinstance(x, (int, float)) for x in value)
    ):
        return _render_curve(value)
    return html.escape(_shorten(value))


def _render_image(data: bytes) -> str | None:
    """Returns bytes as an image; None for other bytes and for large images."""
    kind = next((kind for begin, kind in _KINDS if data.startswith(begin)), None)
    if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        return None
    small = _make_thumbnail(data)
    if small is not None:
        kind, data = "png", small
    elif len(data) > _IMAGE_BYTES:
        return None
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" style="max-width:{_PIXELS}px;max-height:{_PIXELS}px">'


def _make_thumbnail(data: bytes) -> bytes | None:
    """Returns a small PNG of an image; None without Pillow, or for a damaged image."""
    try:
        images = import_module("PIL.Image")
    except ImportError:
        return None
    try:
        with images.open(io.BytesIO(data)) as image:
            image.thumbnail((_PIXELS, _PIXELS))
            small = io.BytesIO()
            image.convert("RGBA").save(small, "PNG")
    except Exception:  # noqa: BLE001 - damaged, or a bomb: Pillow raises many kinds
        return None
    return small.getvalue()


def _render_curve(values: list[float]) -> str:
    """Returns a vector as a curve of its finite elements."""
    width, height = _CURVE
    step = max(1, math.ceil(len(values) / width))
    points = [(at, value) for at, value in enumerate(values[::step]) if math.isfinite(value)]
    if not points:
        return html.escape(_shorten(values))
    low, high = min(value for _, value in points), max(value for _, value in points)
    scale = (height - 2) / (high - low) if high > low else 0.0
    across = (width - 2) / max(1, len(values[::step]) - 1)
    path = " ".join(
        f"{1 + at * across:.1f},{height - 1 - (value - low) * scale:.1f}" for at, value in points
    )
    title = html.escape(f"{len(values)} elements, {low:.3g} to {high:.3g}")
    return (
        f'<svg width="{width}" height="{height}"><title>{title}</title>'
        f'<polyline points="{path}" fill="none" stroke="currentColor"/></svg>'
    )


def _shorten(value: object) -> str:
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    text = str(value)
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…"
