"""Converts columns at any depth with a tree of nodes, one node per field.

The tree is planned once and runs per batch.

In Arrow, children hidden by a NULL parent may have arbitrary values. They never raise an error: a
failed conversion is repeated on an array with NULL for all hidden values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lance_spark.types.fields import (
    BLOB_V2,
    Array,
    Kind,
    children_of,
    extension_name,
    is_blob,
    is_descriptor,
    is_list,
    plain_type,
    storage_type,
)
from lance_spark.types.layout import (
    assemble,
    buffer_of,
    filler,
    nulls,
    offsets_of,
    relabel_array,
    validity,
)
from lance_spark.types.leaves import (
    MOST_OFFSET,
    BadValue,
    Inconvertible,
    Step,
    TooLarge,
    chain,
    check_text,
    enforce_length,
    plan_leaf,
    whole_microseconds,
)

_T = TypeVar("_T")

_UNKNOWN = "the table has no such "
UNKNOWN_COLUMN = f"{_UNKNOWN}column"
"""The problem of a column of a DataFrame that the table lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A field of the target.

    Attributes:
        path: Dotted path of the field.
        step: Conversion of the values, or None if they stay unchanged.
        required: Whether a NULL is an error.
    """

    path: str
    step: Step | None = None
    required: bool = False

    @property
    def trivial(self) -> bool:
        """Whether the node neither converts nor checks values."""
        return self.step is None and not self.required

    def run(self, array: Array, parent: Array | None = None) -> Array:
        """Converts an array.

        Args:
            array: Values of the source.
            parent: The nullable struct above the array, or None. A NULL in a NULL struct is
                allowed.

        Raises:
            BadValue: A value does not fit.
            TooLarge: The batch must be split.
        """
        if self.required and array.null_count:
            is_missing = array.is_null().to_numpy(zero_copy_only=False)
            if parent is not None:
                is_missing &= parent.is_valid().to_numpy(zero_copy_only=False)
            if is_missing.any():
                raise BadValue(
                    int(is_missing.argmax()), "NULL in a column that is not nullable", self.path
                )
        if self.step is None:
            return array
        try:
            return self.step(array.storage if isinstance(array, pa.ExtensionArray) else array)
        except BadValue as error:
            error.path = error.path or self.path
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPlan:
    """A column or struct field of the target.

    Attributes:
        source: Position of the source column or field, or None if absent.
        node: Conversion of the source.
        missing_as: Type of NULLs in place of an absent source.
    """

    source: int | None
    node: Node
    missing_as: Kind

    def run(self, array: Array | None, rows: int, parent: Array | None = None) -> Array:
        """Converts the source as in :meth:`Node.run`. Returns NULLs for an absent source."""
        return nulls(rows, self.missing_as) if array is None else self.node.run(array, parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlanner:
    """Plans nodes, and collects all problems instead of stopping at the first.

    Attributes:
        writing: Whether every NULL in a non-nullable target is an error. Otherwise NULLs are
            checked only in nullable sources.
        problems: Dotted path and description of each field without a conversion.
    """

    writing: bool
    problems: dict[str, str] = field(default_factory=dict)

    def plan(self, source: pa.Field[Any], target: pa.Field[Any], path: str) -> Node:
        """Plans a field and its children."""
        required = (
            not target.nullable
            and (self.writing or source.nullable)
            and not pa.types.is_null(target.type)
        )
        if required and pa.types.is_null(source.type):
            self.problems[path] = "only NULLs, but the column is not nullable"
        try:
            step = self._step(source, target, path)
        except Inconvertible as error:
            self.problems[path] = str(error)
            step = None
        return Node(path=path, step=step, required=required)

    def plan_children(
        self, have: Sequence[pa.Field[Any]], want: Iterable[pa.Field[Any]], path: str | None = None
    ) -> tuple[ChildPlan, ...]:
        """Plans the columns of a schema, or the fields of the struct at a path."""
        noun, prefix = ("column", "") if path is None else ("field", f"{path}.")
        names = [child.name for child in have]
        want = list(want)
        positions = pair_names(names, [child.name for child in want])
        children = []
        for child in want:
            inner, position = f"{prefix}{child.name}", positions.get(child.name)
            if position is None:
                node = self._plan_missing(child, inner, noun)
            else:
                node = self.plan(have[position], child, inner)
            children.append(
                ChildPlan(source=position, node=node, missing_as=plain_type(child.type))
            )
        paired, counts = frozenset(positions.values()), Counter(names)
        for position, name in enumerate(names):
            if self.writing and position not in paired:
                twice = counts[name] > 1
                self.problems[f"{prefix}{name}"] = "is there twice" if twice else _UNKNOWN + noun
        return tuple(children)

    def _plan_missing(self, target: pa.Field[Any], path: str, noun: str) -> Node:
        if not self.writing:
            self.problems[path] = _UNKNOWN + noun
        elif not target.nullable:
            self.problems[path] = f"is missing, and the {noun} is not nullable"
        return Node(path=path)

    def _step(self, source: pa.Field[Any], target: pa.Field[Any], path: str) -> Step | None:
        have, want = storage_type(source), storage_type(target)
        if pa.types.is_null(have) and not pa.types.is_null(want):
            kind = plain_type(want)
            return lambda array: nulls(len(array), kind)
        if is_blob(target) and extension_name(source) != BLOB_V2:
            if pa.types.is_struct(have):
                raise Inconvertible(
                    "holds blob descriptors, not bytes: read with option blob_handling=bytes"
                )
            if extension_name(target) == BLOB_V2:
                return chain(plan_leaf(source, pa.field("", pa.large_binary())), _blob_writer(want))
        if children_of(source) or children_of(target):
            return self._nested(source, target, path)
        return self._leaf(source, target)

    def _leaf(self, source: pa.Field[Any], target: pa.Field[Any]) -> Step | None:
        have, step = storage_type(source), plan_leaf(source, target)
        if self.writing:
            return chain(chain(check_text(have), step), enforce_length(target))
        # Spark's TIME has microseconds, although it travels in nanoseconds.
        return chain(whole_microseconds, step) if have == pa.time64("ns") else step

    def _nested(self, source: pa.Field[Any], target: pa.Field[Any], path: str) -> Step | None:
        have, want = storage_type(source), storage_type(target)
        if pa.types.is_struct(have) and pa.types.is_struct(want):
            step = self._struct(list(have), list(want), path)
            return (
                chain(_nulls_of_format_2_0, step)
                if is_descriptor(source) and have.num_fields == 2
                else step
            )
        if pa.types.is_map(have) and pa.types.is_map(want):
            return self._map(have, want, path)
        if is_list(have) and is_list(want):
            item = self.plan(have.value_field, want.value_field, f"{path}.element")
            return _list_step(item, have, want)
        raise Inconvertible(f"{have} is not converted to {want}; cast it first")

    def _struct(
        self, have: list[pa.Field[Any]], want: list[pa.Field[Any]], path: str
    ) -> Step | None:
        children = self.plan_children(have, want, path)
        return None if are_trivial(children, len(have)) else _struct_step(children, len(have))

    def _map(self, have: Kind, want: Kind, path: str) -> Step | None:
        # A map has the layout and the conversion of a list of structs.
        entry = [have.key_field.with_name("key"), have.item_field.with_name("value")]
        step = self._list_of_entries(entry, want, path)
        if step is None:
            return None
        as_list = pa.list_(pa.struct(entry))

        def convert(array: Array) -> Array:
            entries = relabel_array(array, as_list)
            converted = step(entries)
            return array if converted is entries else converted

        return convert

    def _list_of_entries(self, entry: list[pa.Field[Any]], want: Kind, path: str) -> Step | None:
        entry_fields = [want.key_field.with_name("key"), want.item_field.with_name("value")]
        node = Node(path=path, step=self._struct(entry, entry_fields, path))
        return _list_step(node, pa.list_(pa.struct(entry)), pa.list_(pa.struct(entry_fields)))


def pair_names(have: list[str], want: list[str]) -> dict[str, int]:
    """Returns the position of each requested name.

    An exact match wins. Otherwise names match case-insensitively unless that is ambiguous, as in
    Spark.
    """
    # Of several columns with one name, the first is the source.
    first = {name: i for i, name in reversed(list(enumerate(have)))}
    exact = {name: first[name] for name in want if name in first}
    positions = frozenset(exact.values())
    sources = _unique_lower((name, i) for i, name in enumerate(have) if i not in positions)
    targets = _unique_lower((name, name) for name in want if name not in exact)
    return exact | {targets[lower]: sources[lower] for lower in targets.keys() & sources.keys()}


def _unique_lower(names: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Returns the value of each name in lower case, without names that occur several times."""
    values: dict[str, list[_T]] = {}
    for name, value in names:
        values.setdefault(name.lower(), []).append(value)
    return {lower: alike[0] for lower, alike in values.items() if len(alike) == 1}


def are_in_place(children: Sequence[ChildPlan], count: int) -> bool:
    """Tells whether children are all sources, of this count and in this order."""
    return [child.source for child in children] == list(range(count))


def are_trivial(children: Sequence[ChildPlan], count: int) -> bool:
    """Tells whether children pass all sources on, unchanged and unchecked."""
    return are_in_place(children, count) and all(child.node.trivial for child in children)


def _struct_step(children: Sequence[ChildPlan], count: int) -> Step:
    in_place = are_in_place(children, count)

    def step(array: Array) -> Array:
        parent = array if array.null_count else None
        # After flattening, children of a NULL struct are NULL, so hidden values cannot fail.
        flat = array.flatten() if parent is not None else None

        def source_of(child: ChildPlan) -> Array | None:
            if child.source is None:
                return None
            return (
                array.field(child.source)
                if flat is None or child.node.step is None
                else flat[child.source]
            )

        before = [source_of(child) for child in children]
        after = [
            child.run(values, len(array), parent)
            for child, values in zip(children, before, strict=True)
        ]
        if in_place and all(old is new for old, new in zip(before, after, strict=True)):
            return array
        fields = [pa.field(str(i), child.type) for i, child in enumerate(after)]
        return assemble(pa.struct(fields), len(array), [validity(array)], after)

    return step


def _list_step(item: Node, have: Kind, want: Kind) -> Step | None:
    if pa.types.is_fixed_size_list(want):
        if not pa.types.is_fixed_size_list(have):
            return _retry_without_hidden(lambda array: _to_vectors(array, item, want), _compacted)
        if have.list_size != want.list_size:
            raise Inconvertible(
                f"its vectors have {have.list_size} elements, the column's {want.list_size}"
            )
    if item.trivial and _list_kind(have) == _list_kind(want):
        return None
    if pa.types.is_fixed_size_list(have):
        return _retry_without_hidden(lambda array: _from_vectors(array, item, want), _hidden_nulled)
    return _retry_without_hidden(lambda array: _lists(array, item, want), _compacted)


def _list_kind(kind: Kind) -> int:
    return int(kind.id)


def _retry_without_hidden(convert: Step, clean: Callable[[Array], Array]) -> Step:
    def step(array: Array) -> Array:
        try:
            return convert(array)
        except BadValue:
            if array.null_count == 0:
                raise
            return convert(clean(array))

    return step


def _compacted(array: Array) -> Array:
    """Returns lists without the elements hidden by NULL lists."""
    return array.take(pa.array(np.arange(len(array))))


def _hidden_nulled(array: Array) -> Array:
    """Returns vectors with NULL for the elements hidden by NULL vectors."""
    size = array.type.list_size
    hidden = np.repeat(array.is_null().to_numpy(zero_copy_only=False), size)
    places = pa.array(np.arange(len(hidden)) + array.offset * size, mask=hidden)
    kind = pa.list_(pa.field("item", array.type.value_type), size)
    return assemble(kind, len(array), [validity(array)], [array.values.take(places)])


def _lists(array: Array, item: Node, want: Kind) -> Array:
    """Converts lists of any length to lists of any length."""
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    child = array.values.slice(first, last - first)
    elements = _run_item(item, child, offsets - first)
    if elements is child and _list_kind(array.type) == _list_kind(want):
        return array
    return _list_array(elements, offsets - first, array, want)


def _from_vectors(array: Array, item: Node, want: Kind) -> Array:
    """Converts vectors to lists, or to vectors with other elements.

    The elements of NULL vectors stay in place, hidden.
    """
    size = array.type.list_size
    child = array.values.slice(array.offset * size, len(array) * size)
    offsets = np.arange(len(array) + 1, dtype=np.int64) * size
    elements = _run_item(item, child, offsets)
    if pa.types.is_fixed_size_list(want):
        return assemble(pa.list_(elements.type, size), len(array), [validity(array)], [elements])
    return _list_array(elements, offsets, array, want)


def _list_array(child: Array, offsets: np.ndarray[Any, Any], like: Array, want: Kind) -> Array:
    large = pa.types.is_large_list(want)
    if not large and int(offsets[-1]) > MOST_OFFSET:
        raise TooLarge
    kind = pa.large_list(child.type) if large else pa.list_(child.type)
    buffer = buffer_of(np.ascontiguousarray(offsets, np.int64 if large else np.int32))
    return assemble(kind, len(like), [validity(like), buffer], [child])


def _run_item(item: Node, child: Array, offsets: np.ndarray[Any, Any]) -> Array:
    try:
        return item.run(child)
    except BadValue as error:
        error.index = int(np.searchsorted(offsets, error.index, side="right")) - 1
        raise


def _to_vectors(array: Array, item: Node, want: Kind) -> Array:
    """Converts lists of any length to vectors. Every list must have the length of the vectors.

    A NULL list becomes a NULL vector.
    """
    size = want.list_size
    offsets = offsets_of(array).astype(np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    wrong = np.diff(offsets) != size
    if valid is not None:
        wrong &= valid
    if wrong.any():
        index = int(wrong.argmax())
        raise BadValue(
            index,
            f"a list of {offsets[index + 1] - offsets[index]} elements does not fit a vector of {size}",
        )
    first = int(offsets[0])
    child = array.values.slice(first, int(offsets[-1]) - first)
    elements = _run_item(item, child, offsets - first)
    if valid is not None:
        elements = _with_gaps(elements, offsets - first, valid, want)
    return assemble(pa.list_(elements.type, size), len(array), [validity(array)], [elements])


def _with_gaps(
    child: Array, offsets: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], want: Kind
) -> Array:
    """Returns the elements with `size` fillers in place of each NULL vector.

    Fillers are NULLs, or zeros for non-nullable elements: Lance rejects a NULL element of a NULL
    vector if the element field is not nullable (pylance 14, file formats 2.1 and 2.2).
    """
    size = want.list_size
    places = (offsets[:-1, None] + np.arange(size)).ravel()
    gaps = np.repeat(~valid, size)
    if want.value_field.nullable:
        return child.take(pa.array(np.where(gaps, 0, places), mask=gaps))
    child = pa.concat_arrays([child, filler_like(child)])
    return child.take(pa.array(np.where(gaps, len(child) - 1, places)))


def filler_like(array: Array) -> Array:
    """Returns a zero of an array's type, as an array of length 1."""
    zero = filler(array.type, 1)
    return relabel_array(zero, array.type)


def _nulls_of_format_2_0(array: Array) -> Array:
    """Returns blob descriptors (version 1) with NULL for NULL blobs.

    File format 2.0 has no NULL structs, so a scan yields position 1 and size 0 for a NULL blob. No
    empty blob has this position.
    """
    position, size = (array.field(i).to_numpy(zero_copy_only=False) for i in range(2))
    is_missing = (position == 1) & (size == 0)
    if not is_missing.any():
        return array
    valid = array.is_valid().to_numpy(zero_copy_only=False) & ~is_missing
    bitmap = buffer_of(np.packbits(valid, bitorder="little"))
    return assemble(array.type, len(array), [bitmap], [array.field(0), array.field(1)])


def _blob_writer(want: Kind) -> Step:
    """Returns the step from bytes to values of a blob column (version 2)."""
    kinds = [child.type for child in want]

    def step(array: Array) -> Array:
        rest = [nulls(len(array), kind) for kind in kinds[1:]]
        return assemble(pa.struct(list(want)), len(array), [validity(array)], [array, *rest])

    return step
