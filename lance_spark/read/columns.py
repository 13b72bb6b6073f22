"""Which columns a scan fetches, and how they become the columns that Spark asked for.

Lance fetches a nested field alone only under a flattened name (`s.a`, not `s`), so a pruned struct
is put together again here. Row ids, addresses and versions become signed.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, LongType, StructField, StructType

from lance_spark.errors import ColumnNotFoundError, OptionError, TableUnreadableError, ValueConversionError
from lance_spark.types import to_spark_schema
from lance_spark.types.fields import Array, BlobHandling, Kind
from lance_spark.types.names import refuse_unreadable, requested_columns

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef
    from lance_spark.options import ReadOptions

ROW_ID = "_rowid"
ROW_ADDRESS = "_rowaddr"
ROW_VERSIONS = ("_row_created_at_version", "_row_last_updated_at_version")
META_COLUMNS = (ROW_ID, ROW_ADDRESS, *ROW_VERSIONS)
"""Columns that Lance makes up; uint64 there, bigint in Spark."""

TABLE_METADATA = "lance.table"
"""Key of the column metadata that tells which snapshot a row id or address is from."""


def lance_blob_handling(handling: BlobHandling) -> Literal["all_binary", "blobs_descriptions"]:
    """Returns Lance's name for what a blob column reads as.

    Raises:
        OptionError: It is neither `descriptor` nor `bytes`.
    """
    if handling not in ("descriptor", "bytes"):
        raise OptionError("blob_handling", handling, "descriptor or bytes")
    return "all_binary" if handling == "bytes" else "blobs_descriptions"


def table_schema(dataset: lance.LanceDataset, ref: DatasetRef, options: ReadOptions) -> StructType:
    """Returns the columns of a plain load, in order.

    They are those of the option `columns`, else all, then the `with_*` columns.

    Raises:
        ColumnNotFoundError: `columns` names a column that is not there, or one that two columns
            could be.
        OptionError: `columns` names one column twice, or `with_row_versions` is set on a table
            without stable row ids.
        UnsupportedTypeError: Spark cannot hold a column, or Lance cannot read it.
    """
    wanted = [resolve_name(n, dataset, ref.uri) for n in options.columns or dataset.schema.names]
    twice = [name for name, times in Counter(wanted).items() if times > 1]
    if options.columns and twice:
        raise OptionError(
            "columns",
            ",".join(options.columns),
            "each column once, in whatever case it is written",
            problem=f"names columns twice ({', '.join(twice)})",
        )
    refuse_unreadable(wanted, dataset)
    asked = (
        (ROW_ID, options.with_row_id),
        (ROW_ADDRESS, options.with_row_address),
        *((n, options.with_row_versions) for n in ROW_VERSIONS),
    )
    wanted += [name for name, on in asked if on and name not in wanted]
    arrow = pa.schema([dataset.schema.field(n) for n in wanted if n not in META_COLUMNS])
    fields = {f.name: f for f in to_spark_schema(arrow, blob_handling=options.blob_handling).fields}
    for name in wanted:
        if name in ROW_VERSIONS and not dataset.has_stable_row_ids:
            # Lance answers 1 for every row there, which looks like a value and is none.
            raise OptionError(
                "with_row_versions",
                "true",
                "a table with stable row ids (write it anew with enable_stable_row_ids)",
                problem=f"does not fit the table at {ref.uri}: it keeps no row versions",
            )
        if name in META_COLUMNS:
            metadata = {TABLE_METADATA: ref.snapshot_json()} if name in (ROW_ID, ROW_ADDRESS) else None
            fields[name] = StructField(name, LongType(), False, metadata)
    return StructType([fields[name] for name in wanted])


def resolve_name(name: str, dataset: lance.LanceDataset, uri: str) -> str:
    """Returns the table's own spelling of a top-level column.

    It is an exact match, else the only one that differs in case.

    Raises:
        ColumnNotFoundError: There is none, or more than one.
    """
    known = [*dataset.schema.names, *META_COLUMNS]
    if name in known:
        return name
    alike = [k for k in known if k.lower() == name.lower()]
    if len(alike) == 1:
        return str(alike[0])
    if alike:
        raise ColumnNotFoundError(
            name, uri, hint=f"it could be {' or '.join(map(repr, alike))}: write it as the table does"
        )
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ColumnNotFoundError(name, uri, hint=f"{hint}the columns are {', '.join(map(str, dataset.schema.names))}")


def _scan_schema(dataset: lance.LanceDataset, names: Sequence[str], handling: BlobHandling) -> pa.Schema:
    """Returns the Arrow schema in which Lance yields these top-level columns."""
    blobs = lance_blob_handling(handling)
    return pa.schema(list(dataset.scanner(columns=requested_columns(names), blob_handling=blobs).projected_schema))


@dataclass(frozen=True, slots=True)
class _Whole:
    """A column or nested field that is fetched as it is."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Struct:
    """A struct of which only some children are fetched."""

    children: tuple[tuple[str, _Whole | _Struct], ...]


class Projection:
    """The columns of one scan: what Lance is asked for, and how its batches become what was wanted.

    A struct of which only some fields are wanted arrives as a struct that is never NULL, with NULL
    fields where it was: Lance tells whether a struct is NULL only with all of its fields.

    Attributes:
        paths: What to ask Lance for, in this order; flattened names for fields of pruned structs.
        source: Arrow schema of :meth:`assemble`'s batches; row ids, addresses and versions are
            int64 there.
    """

    def __init__(
        self, dataset: lance.LanceDataset, target: StructType, handling: BlobHandling, uri: str, *, prune: bool
    ) -> None:
        """Plans the columns of `target`, whose names are the table's own.

        Args:
            dataset: The table at its pinned version.
            target: The columns that Spark wants, perhaps with fewer nested fields than the table
                has.
            handling: What blob columns are read as.
            uri: Location, for errors.
            prune: Whether to fetch only the wanted fields of a struct. Without it, structs are
                fetched whole.

        Raises:
            ColumnNotFoundError: The table does not have one of them (any more).
            UnsupportedTypeError: Lance cannot read one of them.
        """
        names = [resolve_name(f.name, dataset, uri) for f in target.fields]
        refuse_unreadable(names, dataset)
        data = _scan_schema(dataset, [n for n in names if n not in META_COLUMNS], handling)
        self._trees: list[_Whole | _Struct] = []
        fields: list[pa.Field[Any]] = []
        for name, wanted in zip(names, target.fields, strict=True):
            if name in META_COLUMNS:
                self._trees.append(_Whole((name,)))
                fields.append(pa.field(wanted.name, pa.int64(), nullable=False))
                continue
            field = data.field(name)
            # A blob is stored as bytes and read as a struct: nothing in it can be fetched alone.
            stored_so = prune and dataset.schema.field(name).type.equals(field.type)
            tree = _tree(field.type, wanted.dataType, (name,)) if stored_so else _Whole((name,))
            if any("`" in part for leaf in _leaves(tree) for part in leaf):
                tree = _Whole((name,))  # a path has no way to write it
            self._trees.append(tree)
            nullable = field.nullable and isinstance(tree, _Whole)
            fields.append(field.with_name(wanted.name).with_type(_type_of(tree, field.type)).with_nullable(nullable))
        self._uri = uri
        self.source = pa.schema(fields)
        self.paths = [_dotted(leaf) for tree in self._trees for leaf in _leaves(tree)]

    def assemble(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns Lance's batch with the structs put together and the made-up columns signed.

        Copies no values.

        Raises:
            ValueConversionError: A row id, address or version is 2^63 or more.
            TableUnreadableError: The batch has other columns.
        """
        if not self._trees:
            return batch
        if batch.schema.names != self.paths:
            raise TableUnreadableError(
                self._uri,
                f"a scan of the columns {self.paths} gave the columns {batch.schema.names}",
                hint="read the table with a release of pylance that this release of lance-spark supports",
            )
        columns = iter(batch.columns)
        arrays = []
        for tree, field in zip(self._trees, self.source, strict=True):
            array = _build(tree, field.type, columns)
            made_up = isinstance(tree, _Whole) and tree.path[0] in META_COLUMNS
            arrays.append(_signed(array, field.name) if made_up else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.source)


def _tree(arrow: Kind, wanted: DataType, path: tuple[str, ...]) -> _Whole | _Struct:
    if not (pa.types.is_struct(arrow) and isinstance(wanted, StructType) and wanted.fields):
        return _Whole(path)
    if any(arrow.get_field_index(f.name) < 0 for f in wanted.fields):
        return _Whole(path)  # the conversion to Spark's types says what is wrong
    children = tuple((f.name, _tree(arrow.field(f.name).type, f.dataType, (*path, f.name))) for f in wanted.fields)
    complete = len(children) == arrow.num_fields
    return _Whole(path) if complete and all(isinstance(c, _Whole) for _, c in children) else _Struct(children)


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
    """Returns a path as Lance takes it: a top-level name literally, the parts of others quoted."""
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
            hint="compact or rewrite the table to give its rows small ids",
        )
    return array.view(pa.int64())
