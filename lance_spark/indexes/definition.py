"""The definition of an index: kind, column and parameters, validated for the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast, get_args

import pyarrow as pa
import pyarrow.types as pt

from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError
from lance_spark.queries import metric_of
from lance_spark.types.fields import Kind

if TYPE_CHECKING:
    import lance

VectorKind = Literal["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ", "IVF_HNSW_PQ"]
ScalarKind = Literal["BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER"]
TextKind = Literal["FTS"]
IndexKind = VectorKind | ScalarKind | TextKind

TASK_ROWS: Mapping[str, int] = {
    "BTREE": 1_000_000,
    "BITMAP": 1_000_000,
    "LABEL_LIST": 1_000_000,
    "ZONEMAP": 10_000_000,
    "BLOOMFILTER": 10_000_000,
    "NGRAM": 50_000,
    "FTS": 50_000,
    "IVF_FLAT": 100_000,
    "IVF_PQ": 100_000,
    "IVF_HNSW_SQ": 50_000,
    "IVF_HNSW_PQ": 50_000,
}
"""Minimum rows of a task, by kind: about a second of work of a core."""

_PARTITION_ROWS = {"IVF_FLAT": 4096, "IVF_PQ": 4096, "IVF_HNSW_SQ": 1 << 20, "IVF_HNSW_PQ": 1 << 20}
_ORDERED = "numbers, booleans, strings, binary, dates, times and decimals"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """The definition of an index. Picklable.

    Attributes:
        name: Name of the index, unique in the table.
        column: The column; a nested field with dots.
        kind: Kind of the index.
        parameters: Further arguments by pylance's names.
        replace: Whether the index replaces an index of its name.
    """

    name: str
    column: str
    kind: IndexKind
    parameters: Mapping[str, object] = field(default_factory=dict)
    replace: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise OptionError("column", self.column, "the name of a column")
        if not isinstance(self.name, str) or not self.name.strip():
            raise OptionError("name", self.name, "a name for the index")

    @property
    def is_vector(self) -> bool:
        """Whether the index is a vector index."""
        return self.kind in _PARTITION_ROWS

    @property
    def merges(self) -> bool:
        """Whether a task merges the segments.

        If several segments of a scalar or text index have a row, as after an update, Lance takes
        the answer of any segment. A merge of graphs would build the graphs again. Lance searches
        the segments of graphs separately.
        """
        return "HNSW" not in self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedColumn:
    """The column of an index at a version.

    Attributes:
        top: The top-level column.
        field_id: Field id of the column.
        type: Arrow type of the column.
    """

    top: FieldIdentity
    field_id: int
    type: Kind


def indexed_column(dataset: lance.LanceDataset, column: str) -> IndexedColumn:
    """Returns the column of an index.

    Raises:
        ColumnNotFoundError: The column does not exist.
    """
    lance_field = dataset.lance_schema.field(column)
    if lance_field is None:
        raise ColumnNotFoundError(column, dataset.uri, hint=f"its columns are {', '.join(dataset.schema.names)}")
    top = next(identity for identity in field_identities(dataset.lance_schema) if lance_field.id() in identity.ids)
    kind: Kind = lance_field.to_arrow().type  # type: ignore[attr-defined]  # pylance's stub lacks it
    return IndexedColumn(top=top, field_id=lance_field.id(), type=getattr(kind, "storage_type", kind))


def scalar_index(column: str, kind: str, *, name: str | None, replace: bool) -> IndexDefinition:
    """Returns the definition of a scalar index, for filters.

    Raises:
        OptionError: The kind does not exist.
    """
    kind_name = {"BLOOM": "BLOOMFILTER"}.get(str(kind).upper(), str(kind).upper())
    accepted = get_args(ScalarKind)
    if kind_name not in accepted:
        raise OptionError("index_type", kind, f"{', '.join(accepted)}; create_fts_index makes indexes of text")
    return IndexDefinition(name=_named(name, column), column=column, kind=cast(ScalarKind, kind_name), replace=replace)


def vector_index(
    column: str,
    kind: str,
    metric: str,
    *,
    name: str | None,
    replace: bool,
    numbers: Mapping[str, int | None],
) -> IndexDefinition:
    """Returns the definition of a vector index.

    Args:
        column: The column.
        kind: Kind of the index.
        metric: Metric of distances.
        name: Name of the index, or None for the column's name and `_idx`.
        replace: Whether the index replaces an index of its name.
        numbers: Parameters by pylance's names; None for defaults.

    Raises:
        OptionError: A parameter is not valid.
    """
    distance = metric_of(metric)
    for option, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise OptionError(option, value, "a whole number, 1 or more")
    if numbers["num_bits"] not in (4, 8):
        raise OptionError("num_bits", numbers["num_bits"], "4 or 8")
    kind_name = str(kind).upper()
    if kind_name not in get_args(VectorKind):
        raise OptionError("index_type", kind, ", ".join(get_args(VectorKind)))
    used = {key: value for key, value in numbers.items() if key in _used_by(kind_name)}
    return IndexDefinition(
        name=_named(name, column),
        column=column,
        kind=cast(VectorKind, kind_name),
        parameters={"metric": distance, **used},
        replace=replace,
    )


def _used_by(kind: str) -> set[str]:
    used = {"num_partitions", "max_iters", "sample_rate"}
    if "PQ" in kind:
        used |= {"num_sub_vectors", "num_bits"}
    return used | {"m", "ef_construction"} if "HNSW" in kind else used


def _named(name: str | None, column: str) -> str:
    return f"{column}_idx" if name is None else name


def checked(definition: IndexDefinition, column: IndexedColumn, rows: int) -> IndexDefinition:
    """Returns a definition with its parameters for a column and a number of rows.

    Raises:
        UnsupportedTypeError: The kind does not support the type of the column.
        OptionError: A parameter does not fit the column.
    """
    kind = column.type
    accepted = _accepts(definition.kind, kind)
    if accepted is not None:
        raise UnsupportedTypeError(
            definition.column,
            str(kind),
            reason=f"an index {definition.kind} is of {accepted}",
            hint="make another kind of index, or one of another column",
        )
    return _of_vectors(definition, kind, rows) if definition.is_vector else definition


def _of_vectors(definition: IndexDefinition, kind: Kind, rows: int) -> IndexDefinition:
    parameters = dict(definition.parameters)
    vector = kind.value_type if not pt.is_fixed_size_list(kind) else kind
    binary, size = pt.is_uint8(vector.value_type), vector.list_size
    if binary != (parameters["metric"] == "hamming") or (binary and definition.kind != "IVF_FLAT"):
        raise OptionError(
            "metric",
            parameters["metric"],
            "hamming with IVF_FLAT for vectors of uint8, and l2, cosine or dot for vectors of floating-point numbers",
            problem=f"does not fit column {definition.column!r} of {kind}",
        )
    if vector is not kind and parameters["metric"] != "cosine":
        raise OptionError("metric", parameters["metric"], "cosine for lists of vectors")
    if parameters["num_partitions"] is None:
        parameters["num_partitions"] = max(1, rows // _PARTITION_ROWS[definition.kind])
    if "num_sub_vectors" in parameters:
        sub_vectors = parameters["num_sub_vectors"]
        parameters["num_sub_vectors"] = size // (16 if size % 16 == 0 else 8 if size % 8 == 0 else size) or 1
        if sub_vectors is not None:
            if not isinstance(sub_vectors, int) or size % sub_vectors:
                raise OptionError("num_sub_vectors", sub_vectors, f"a number that divides {size}, the vectors' length")
            parameters["num_sub_vectors"] = sub_vectors
    return dataclasses.replace(definition, parameters=parameters)


def _accepts(kind: IndexKind, of: Kind) -> str | None:
    """Returns the supported types of a kind as text, if the type is unsupported; else None."""
    text = pt.is_string(of) or pt.is_large_string(of)
    lists = pt.is_list(of) or pt.is_large_list(of)
    binary = pt.is_binary(of) or pt.is_large_binary(of)
    number = pt.is_integer(of) or pt.is_floating(of)
    if kind in ("BTREE", "BITMAP"):
        fits = text or binary or number or pt.is_boolean(of) or pt.is_temporal(of) or pt.is_decimal(of)
        return None if fits or pt.is_fixed_size_binary(of) else _ORDERED
    if kind == "ZONEMAP":
        return _ORDERED if pt.is_nested(of) else None
    if kind == "BLOOMFILTER":
        fits = text or binary or (number and of != pa.float16()) or pt.is_temporal(of)
        return None if fits else "numbers but half floats, strings, binary, dates and times"
    if kind == "LABEL_LIST":
        return None if lists and not pt.is_nested(of.value_type) else "lists"
    if kind == "NGRAM":
        return None if text else "strings"
    if kind == "FTS":
        strings = lists and (pt.is_string(of.value_type) or pt.is_large_string(of.value_type))
        return None if text or strings else "strings, and lists of strings"
    vector = of.value_type if lists else of
    element = vector.value_type if pt.is_fixed_size_list(vector) else None
    fits = element is not None and (pt.is_floating(element) or pt.is_uint8(element))
    return None if fits else "vectors: fixed-size lists of floating-point numbers, or of uint8 for hamming"
