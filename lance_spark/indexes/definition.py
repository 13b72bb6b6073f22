"""The definition of an index: kind, column and parameters, validated for the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast, get_args

import pyarrow as pa
import pyarrow.types as pt

from lance_spark.commit.conflicts.identity import FieldIdentity, field_identities
from lance_spark.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError
from lance_spark.options.io_options import check_number
from lance_spark.queries.parameters import metric_of
from lance_spark.read.vector_hint import vector_hint
from lance_spark.types.fields import Kind

if TYPE_CHECKING:
    import lance

VectorKind = Literal[
    "IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"
]
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
    "IVF_SQ": 100_000,
    "IVF_PQ": 100_000,
    "IVF_RQ": 100_000,
    "IVF_HNSW_FLAT": 50_000,
    "IVF_HNSW_SQ": 50_000,
    "IVF_HNSW_PQ": 50_000,
}
"""Minimum rows of a task, by kind: about a second of work of a core."""

_PARTITION_ROWS = {kind: 1 << 20 if "HNSW" in kind else 4096 for kind in get_args(VectorKind)}
_TOKENIZERS = ("simple", "whitespace", "raw", "ngram", "icu", "icu/split")
_MODEL_TOKENIZERS = ("jieba/", "lindera/")
_LANGUAGES = (
    "Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian", "Norwegian",
    "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish",
)  # fmt: skip
LEAST_MEMORY_BYTES = 16 << 20


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

    @property
    def model_hint(self) -> str:
        """A hint for an error about a language model that a tokenizer needs; else empty."""
        tokenizer = str(self.parameters.get("base_tokenizer"))
        if not tokenizer.startswith(_MODEL_TOKENIZERS):
            return ""
        return (
            f" The tokenizer {tokenizer} needs its language model on each machine: in the folder {tokenizer} below "
            "LANCE_LANGUAGE_MODEL_HOME, or below lance/language_models of the user's data folder."
        )

    @property
    def is_single(self) -> bool:
        """Whether one task builds the whole index. Lance cannot merge segments of IVF_RQ."""
        return self.kind == "IVF_RQ"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedColumn:
    """The column of an index at a version.

    Attributes:
        top: The top-level column.
        type: Arrow type of the column.
    """

    top: FieldIdentity
    type: Kind


def indexed_column(dataset: lance.LanceDataset, column: str) -> IndexedColumn:
    """Returns the column of an index.

    Raises:
        ColumnNotFoundError: The column does not exist.
    """
    lance_field = dataset.lance_schema.field(column)
    if lance_field is None:
        raise ColumnNotFoundError(
            column, dataset.uri, hint=f"its columns are {', '.join(dataset.schema.names)}"
        )
    top = next(
        identity
        for identity in field_identities(dataset.lance_schema)
        if lance_field.id() in identity.ids
    )
    kind: Kind = lance_field.to_arrow().type  # type: ignore[attr-defined]  # pylance's stub lacks it
    return IndexedColumn(top=top, type=getattr(kind, "storage_type", kind))


def scalar_index(column: str, kind: str, *, name: str | None, replace: bool) -> IndexDefinition:
    """Returns the definition of a scalar index, for filters.

    Raises:
        OptionError: The kind does not exist.
    """
    kind_name = {"BLOOM": "BLOOMFILTER"}.get(str(kind).upper(), str(kind).upper())
    accepted = get_args(ScalarKind)
    if kind_name not in accepted:
        raise OptionError(
            "index_type", kind, f"{', '.join(accepted)}; create_fts_index makes indexes of text"
        )
    return IndexDefinition(
        name=_default_name(name, column),
        column=column,
        kind=cast(ScalarKind, kind_name),
        replace=replace,
    )


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
        check_number(option, value, least=1)
    kind_name = str(kind).upper()
    if kind_name not in get_args(VectorKind):
        raise OptionError("index_type", kind, ", ".join(get_args(VectorKind)))
    used = {key: value for key, value in numbers.items() if key in _used_by(kind_name)}
    if "num_bits" in used and "PQ" in kind_name and used["num_bits"] not in (4, 8):
        raise OptionError("num_bits", numbers["num_bits"], "4 or 8")
    return IndexDefinition(
        name=_default_name(name, column),
        column=column,
        kind=cast(VectorKind, kind_name),
        parameters={"metric": distance, **used},
        replace=replace,
    )


def _used_by(kind: str) -> set[str]:
    used = {"num_partitions", "target_partition_size", "max_iters", "sample_rate"}
    if kind == "IVF_RQ":
        used.add("num_bits")
    if "PQ" in kind:
        used |= {"num_sub_vectors", "num_bits"}
    return used | {"m", "ef_construction"} if "HNSW" in kind else used


def _default_name(name: str | None, column: str) -> str:
    return f"{column}_idx" if name is None else name


def text_indexes(
    columns: str | Sequence[str],
    *,
    name: str | None,
    replace: bool,
    memory_bytes: int | None,
    tokens: Mapping[str, object],
) -> list[IndexDefinition]:
    """Returns the definition of a text index for each column.

    Args:
        columns: The columns.
        name: Name of the index of a single column; None for the column's name and `_idx`.
        replace: Whether the indexes replace existing indexes of their names.
        memory_bytes: Memory of a task that builds an index; None leaves the size to Lance.
        tokens: Options of the tokenizer, by pylance's names.

    Raises:
        OptionError: An option is not valid.
    """
    column_names = [columns] if isinstance(columns, str) else list(columns)
    if not column_names or len(set(column_names)) != len(column_names):
        raise OptionError("field_names", columns, "a column, or a list of columns, each once")
    if name is not None and len(column_names) > 1:
        raise OptionError(
            "name",
            name,
            "nothing where there are several columns: each index is named after its own",
        )
    _check_tokenizer(tokens["base_tokenizer"])
    if tokens["language"] not in _LANGUAGES:
        raise OptionError("language", tokens["language"], f"one of {', '.join(_LANGUAGES)}")
    _check_words("custom_stop_words", tokens.get("custom_stop_words"))
    if tokens.get("block_size", 128) not in (128, 256):
        raise OptionError("block_size", tokens["block_size"], "128 or 256")
    for option in ("ngram_min_length", "ngram_max_length"):
        check_number(option, tokens.get(option), least=1)
    letters = "a number of letters, 1 or more, or None"
    check_number("max_token_length", tokens["max_token_length"], least=1, accepted=letters)
    size = f"bytes, {LEAST_MEMORY_BYTES} or more, or None"
    check_number("writer_heap_size", memory_bytes, least=LEAST_MEMORY_BYTES, accepted=size)
    memory = {} if memory_bytes is None else {"memory_limit": memory_bytes >> 20}
    return [
        IndexDefinition(
            name=_default_name(name, column),
            column=column,
            kind="FTS",
            parameters={
                **{_LANCE_NAMES.get(key, key): value for key, value in tokens.items()},
                **memory,
            },
            replace=replace,
        )
        for column in column_names
    ]


_LANCE_NAMES = {"ngram_min_length": "min_ngram_length", "ngram_max_length": "max_ngram_length"}


def _check_tokenizer(name: object) -> None:
    if name not in _TOKENIZERS and not str(name).startswith(_MODEL_TOKENIZERS):
        accepted = (
            f"{', '.join(_TOKENIZERS)}, or jieba/ or lindera/ and the name of a language model"
        )
        raise OptionError("base_tokenizer", name, accepted)


def _check_words(option: str, words: object) -> None:
    if words is not None and (
        not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words)
    ):
        raise OptionError(option, words, "a list of words")


def checked(
    definition: IndexDefinition, column: IndexedColumn, rows: int, dataset: lance.LanceDataset
) -> IndexDefinition:
    """Returns a definition with its parameters for a column and a number of rows.

    Raises:
        UnsupportedTypeError: The kind does not support the type of the column.
        OptionError: A parameter does not fit the column.
    """
    accepted, accepts = _ACCEPTED[definition.kind]
    if not accepts(column.type):
        hint = vector_hint(dataset, definition.column) if definition.is_vector else None
        raise UnsupportedTypeError(
            definition.column,
            str(column.type),
            reason=f"an index {definition.kind} is of {accepted}",
            hint=hint or "make another kind of index, or one of another column",
        )
    return _of_vectors(definition, column.type, rows) if definition.is_vector else definition


def _of_vectors(definition: IndexDefinition, kind: Kind, rows: int) -> IndexDefinition:
    parameters = dict(definition.parameters)
    vector = kind if pt.is_fixed_size_list(kind) else kind.value_type
    _check_metric(definition, kind, vector)
    target = parameters.pop("target_partition_size", None)
    partition_rows = target if isinstance(target, int) else _PARTITION_ROWS[definition.kind]
    if parameters["num_partitions"] is None:
        parameters["num_partitions"] = max(1, rows // partition_rows)
    if "num_sub_vectors" in parameters:
        parameters["num_sub_vectors"] = _count_sub_vectors(
            parameters["num_sub_vectors"], vector.list_size
        )
    return dataclasses.replace(definition, parameters=parameters)


def _check_metric(definition: IndexDefinition, kind: Kind, vector: Kind) -> None:
    metric, binary = definition.parameters["metric"], pt.is_uint8(vector.value_type)
    if binary != (metric == "hamming") or (binary and definition.kind != "IVF_FLAT"):
        raise OptionError(
            "metric",
            metric,
            "hamming with IVF_FLAT for vectors of uint8, and l2, cosine or dot for vectors of floating-point numbers",
            problem=f"does not fit column {definition.column!r} of {kind}",
        )
    if vector is not kind and metric != "cosine":
        raise OptionError("metric", metric, "cosine for lists of vectors")


def _count_sub_vectors(requested: object, size: int) -> int:
    """Returns the number of sub-vectors for the length of the vectors."""
    if requested is None:
        length = next((length for length in (16, 8) if size % length == 0), size)
        return size // length or 1
    if not isinstance(requested, int) or size % requested:
        raise OptionError(
            "num_sub_vectors", requested, f"a number that divides {size}, the vectors' length"
        )
    return requested


def _any_of(*predicates: Callable[[Kind], bool]) -> Callable[[Kind], bool]:
    return lambda kind: any(accepts(kind) for accepts in predicates)


_is_text = _any_of(pt.is_string, pt.is_large_string)
_is_list = _any_of(pt.is_list, pt.is_large_list)
_is_binary = _any_of(pt.is_binary, pt.is_large_binary)
_is_number = _any_of(pt.is_integer, pt.is_floating)
_is_ordered = _any_of(
    _is_text,
    _is_binary,
    _is_number,
    pt.is_boolean,
    pt.is_temporal,
    pt.is_decimal,
    pt.is_fixed_size_binary,
)
_is_hashable = _any_of(_is_text, _is_binary, _is_number, pt.is_temporal)


def _is_list_of_values(kind: Kind) -> bool:
    return _is_list(kind) and not pt.is_nested(kind.value_type)


def _is_text_or_texts(kind: Kind) -> bool:
    return _is_text(kind.value_type if _is_list(kind) else kind)


def _is_vector(kind: Kind) -> bool:
    """Tells whether a column has vectors, or lists of vectors."""
    vector = kind.value_type if _is_list(kind) else kind
    return pt.is_fixed_size_list(vector) and (
        pt.is_floating(vector.value_type) or pt.is_uint8(vector.value_type)
    )


_ORDERED = ("numbers, booleans, strings, binary, dates, times and decimals", _is_ordered)
_VECTORS = (
    "vectors: fixed-size lists of floating-point numbers, or of uint8 for hamming",
    _is_vector,
)

_ACCEPTED: Mapping[str, tuple[str, Callable[[Kind], bool]]] = {
    "BTREE": _ORDERED,
    "BITMAP": _ORDERED,
    "ZONEMAP": (_ORDERED[0], lambda kind: not pt.is_nested(kind)),
    "BLOOMFILTER": (
        "numbers but half floats, strings, binary, dates and times",
        lambda kind: _is_hashable(kind) and kind != pa.float16(),
    ),
    "LABEL_LIST": ("lists", _is_list_of_values),
    "NGRAM": ("strings", _is_text),
    "FTS": ("strings, and lists of strings", _is_text_or_texts),
    **dict.fromkeys(get_args(VectorKind), _VECTORS),
}
"""The supported types of each kind of index, as text and as a function."""
