"""Selects the columns to fetch, and assembles the columns for Spark.

Lance fetches a single nested field only under a flattened name (`s.a`, not `s`). This module
reassembles pruned structs. Row ids, addresses and versions become signed integers.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, LongType, StructField, StructType

from lance_spark.errors import (
    ColumnNotFoundError,
    OptionError,
    TableUnreadableError,
    ValueConversionError,
)
from lance_spark.types import to_spark_schema
from lance_spark.types.fields import Array, BlobHandling, Kind, refuse_unreadable, scan_field

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef
    from lance_spark.options.io_options import ReadOptions

ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
ROW_VERSIONS = ("_row_created_at_version", "_row_last_updated_at_version")
META_COLUMNS = (ROW_ID, ROW_ADDRESS, *ROW_VERSIONS)
"""Virtual columns of Lance: uint64 in Lance, bigint in Spark."""

TABLE_METADATA = "lance.table"
"""Key of the column metadata that records the snapshot of a row id or row address."""


def lance_blob_handling(handling: BlobHandling) -> Literal["all_binary", "blobs_descriptions"]:
    """Returns Lance's name for the blob handling.

    Raises:
        OptionError: The value is neither `descriptor` nor `bytes`.
    """
    if handling not in ("descriptor", "bytes"):
        raise OptionError("blob_handling", handling, "descriptor or bytes")
    return "all_binary" if handling == "bytes" else "blobs_descriptions"


def table_schema(dataset: lance.LanceDataset, ref: DatasetRef, options: ReadOptions) -> StructType:
    """Returns the columns of a plain load, in order.

    The columns of the option `columns`, or all columns, come first. The `with_*` columns follow.

    Raises:
        ColumnNotFoundError: `columns` names a column that does not exist, or an ambiguous name.
        OptionError: `columns` names one column twice, or `with_row_versions` is set on a table
            without stable row ids.
        UnsupportedTypeError: Spark cannot hold a column, or Lance cannot read it.
    """
    table = dataset.schema
    names = _selected_names(table, ref, options)
    refuse_unreadable(names, table)
    names += [name for name in _added_names(options) if name not in names]
    stored = pa.schema([table.field(name) for name in names if name not in META_COLUMNS])
    fields = {
        field.name: field
        for field in to_spark_schema(stored, blob_handling=options.blob_handling).fields
    }
    return StructType(
        [
            _meta_field(name, dataset, ref) if name in META_COLUMNS else fields[name]
            for name in names
        ]
    )


def _selected_names(table: pa.Schema, ref: DatasetRef, options: ReadOptions) -> list[str]:
    """Returns the columns of the option `columns`, or all columns, in the table's spelling."""
    names = resolve_names(options.columns or table.names, table, ref.uri)
    twice = [name for name, times in Counter(names).items() if times > 1]
    if options.columns and twice:
        raise OptionError(
            "columns",
            ",".join(options.columns),
            "each column once, case-insensitively",
            problem=f"names columns twice ({', '.join(twice)})",
        )
    return names


def _added_names(options: ReadOptions) -> Iterator[str]:
    """Yields the columns of the options `with_*`."""
    if options.with_row_id:
        yield ROW_ID
    if options.with_row_address:
        yield ROW_ADDRESS
    if options.with_row_versions:
        yield from ROW_VERSIONS


def _meta_field(name: str, dataset: lance.LanceDataset, ref: DatasetRef) -> StructField:
    if name in ROW_VERSIONS and not dataset.has_stable_row_ids:
        # Without stable row ids, Lance returns the meaningless version 1 for every row.
        raise OptionError(
            "with_row_versions",
            "true",
            "a table with stable row ids (enable_stable_row_ids)",
            problem=f"does not fit the table at {ref.uri}, which keeps no row versions",
        )
    metadata = {TABLE_METADATA: ref.snapshot_json()} if name in (ROW_ID, ROW_ADDRESS) else None
    return StructField(name, LongType(), False, metadata)


def resolve_names(names: Iterable[str], table: pa.Schema, uri: str) -> list[str]:
    """Returns the table's spelling of top-level columns.

    An exact match wins. Otherwise exactly one column may match case-insensitively.

    Raises:
        ColumnNotFoundError: No column matches a name, or several columns do.
    """
    spellings: dict[str, list[str]] = {}
    for spelling in (*table.names, *META_COLUMNS):
        spellings.setdefault(spelling.lower(), []).append(spelling)
    return [_resolve(name, spellings.get(name.lower(), []), table, uri) for name in names]


def _resolve(name: str, alike: Sequence[str], table: pa.Schema, uri: str) -> str:
    """Returns the table's spelling of a column among the columns that match case-insensitively."""
    if name in alike:
        return name
    if len(alike) == 1:
        return alike[0]
    if alike:
        hint = (
            f"The name could be {' or '.join(map(repr, alike))}. Spell the column as in the table."
        )
        raise ColumnNotFoundError(name, uri, hint=hint)
    close = difflib.get_close_matches(name, [*table.names, *META_COLUMNS], n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    raise ColumnNotFoundError(
        name, uri, hint=f"{hint}The columns are {', '.join(map(str, table.names))}."
    )


@dataclass(frozen=True, slots=True)
class _Whole:
    """A column or nested field that is fetched whole."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Struct:
    """A struct of which only some children are fetched."""

    children: tuple[tuple[str, _Whole | _Struct], ...]


class Projection:
    """The columns of one scan: the paths to fetch, and the assembly of the requested columns.

    A pruned struct is never NULL: a NULL struct becomes a struct of NULL fields. Lance reports
    whether a struct is NULL only if all of its fields are fetched.

    Attributes:
        paths: Paths to fetch, in this order. Fields of pruned structs have flattened names.
        source: Arrow schema of the batches of :meth:`assemble`. Row ids, addresses and versions are
            int64.
    """

    def __init__(
        self,
        dataset: lance.LanceDataset,
        target: StructType,
        handling: BlobHandling,
        uri: str,
        *,
        prune: bool,
    ) -> None:
        """Plans the columns of `target`, in the table's spelling.

        Args:
            dataset: The table at its pinned version.
            target: The columns for Spark. Structs may have fewer fields than in the table.
            handling: Blob handling.
            uri: Location, for errors.
            prune: Whether to fetch only the requested fields of a struct. Otherwise structs are
                fetched whole.

        Raises:
            ColumnNotFoundError: The table does not have a column.
            UnsupportedTypeError: Lance cannot read a column.
        """
        table = dataset.schema
        names = resolve_names(target.names, table, uri)
        refuse_unreadable(names, table)
        self._trees: list[_Whole | _Struct] = []
        fields: list[pa.Field[Any]] = []
        for name, requested in zip(names, target.fields, strict=True):
            if name in META_COLUMNS:
                self._trees.append(_Whole((name,)))
                fields.append(pa.field(requested.name, pa.int64(), nullable=False))
                continue
            stored = table.field(name)
            # Lance takes a time quadratic in the columns for the schema of a scan.
            field = scan_field(stored, handling)
            tree: _Whole | _Struct = _Whole((name,))
            # A blob is stored as bytes and read as a struct, so its fields cannot be fetched
            # separately.
            if prune and stored.type.equals(field.type):
                tree = _pruned_tree(field.type, requested.dataType, name)
            self._trees.append(tree)
            nullable = field.nullable and isinstance(tree, _Whole)
            fields.append(
                field.with_name(requested.name)
                .with_type(_type_of(tree, field.type))
                .with_nullable(nullable)
            )
        self._uri = uri
        self.source = pa.schema(fields)
        self.paths = [_dotted(leaf) for tree in self._trees for leaf in _leaves(tree)]

    def assemble(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Assembles the structs of a Lance batch, and makes the virtual columns signed.

        Copies no values.

        Raises:
            ValueConversionError: A row id, address or version is 2^63 or more.
            TableUnreadableError: The batch has unexpected columns.
        """
        if not self._trees:
            return batch
        if batch.schema.names != self.paths:
            raise TableUnreadableError(
                self._uri,
                f"a scan of the columns {self.paths} gave the columns {batch.schema.names}",
                hint="Read the table with a release of pylance that this release of lance-spark supports.",
            )
        columns = iter(batch.columns)
        arrays = []
        for tree, field in zip(self._trees, self.source, strict=True):
            array = _build(tree, field.type, columns)
            made_up = isinstance(tree, _Whole) and tree.path[0] in META_COLUMNS
            arrays.append(_signed(array, field.name) if made_up else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.source)


def _pruned_tree(arrow: Kind, requested: DataType, name: str) -> _Whole | _Struct:
    tree = _tree(arrow, requested, (name,))
    # Lance's path syntax cannot express a name with a backtick.
    is_expressible = not any("`" in part for leaf in _leaves(tree) for part in leaf)
    return tree if is_expressible else _Whole((name,))


def _tree(arrow: Kind, requested: DataType, path: tuple[str, ...]) -> _Whole | _Struct:
    if not (pa.types.is_struct(arrow) and isinstance(requested, StructType) and requested.fields):
        return _Whole(path)
    if any(arrow.get_field_index(f.name) < 0 for f in requested.fields):
        return _Whole(path)  # The conversion to Spark's types reports the error.
    children = tuple(
        (f.name, _tree(arrow.field(f.name).type, f.dataType, (*path, f.name)))
        for f in requested.fields
    )
    complete = len(children) == arrow.num_fields
    return (
        _Whole(path)
        if complete and all(isinstance(c, _Whole) for _, c in children)
        else _Struct(children)
    )


def _type_of(tree: _Whole | _Struct, arrow: Kind) -> Kind:
    if isinstance(tree, _Whole):
        return arrow
    return pa.struct([_pruned(arrow.field(name), child) for name, child in tree.children])


def _pruned(field: pa.Field[Any], tree: _Whole | _Struct) -> pa.Field[Any]:
    if isinstance(tree, _Whole):
        return field.with_nullable(True)
    return field.with_type(_type_of(tree, field.type)).with_nullable(False)


def _leaves(tree: _Whole | _Struct) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, _Whole):
        yield tree.path
    else:
        for _, child in tree.children:
            yield from _leaves(child)


def _dotted(path: tuple[str, ...]) -> str:
    """Returns a path in Lance's syntax: top-level names as they are, nested names quoted."""
    return path[0] if len(path) == 1 else ".".join(f"`{part}`" for part in path)


def _build(tree: _Whole | _Struct, kind: Kind, columns: Iterator[Array]) -> Array:
    if isinstance(tree, _Whole):
        return next(columns)
    children = [_build(child, kind.field(name).type, columns) for name, child in tree.children]
    return pa.StructArray.from_arrays(children, fields=list(kind))


def _signed(array: Array, name: str) -> Array:
    """Returns uint64 values as int64, sharing the buffer."""
    if len(array) and pc.max(array).as_py() >= 1 << 63:
        raise ValueConversionError(
            name,
            None,
            f"{name} is 2^63 or more, which Spark's bigint cannot hold",
            hint="Compact or rewrite the table to give its rows small ids.",
        )
    return array.view(pa.int64())
