"""Conversion of columns at any depth: a tree of nodes, one per field.

It is planned once and run per batch.

Children that a NULL parent hides may hold anything in Arrow. They are never reported as bad values:
a conversion that fails is tried again on an array in which what is hidden is NULL as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
from lance_spark.types.layout import assemble, buffer_of, filler, nulls, offsets_of, relabel_array, validity
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One field of the target.

    Attributes:
        path: Its dotted path.
        step: What makes its values from the source's; None where these can stay.
        required: Whether a NULL is an error.
    """

    path: str
    step: Step | None = None
    required: bool = False

    @property
    def trivial(self) -> bool:
        """Whether there is nothing to do, not even to look at the values."""
        return self.step is None and not self.required

    def run(self, array: Array, parent: Array | None = None) -> Array:
        """Converts an array.

        Args:
            array: Values of the source.
            parent: The struct that holds the array, where that can have NULLs: a NULL below a NULL
                is none.

        Raises:
            BadValue: A value does not fit.
            TooLarge: The batch has to be split.
        """
        if self.required and array.null_count:
            missing = array.is_null().to_numpy(zero_copy_only=False)
            if parent is not None:
                missing &= parent.is_valid().to_numpy(zero_copy_only=False)
            if missing.any():
                raise BadValue(int(missing.argmax()), "NULL in a column that is not nullable", self.path)
        if self.step is None:
            return array
        try:
            return self.step(array.storage if isinstance(array, pa.ExtensionArray) else array)
        except BadValue as error:
            error.path = error.path or self.path
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans nodes, and collects what does not go instead of stopping at the first.

    Attributes:
        writing: Whether NULLs are errors wherever the target says so, or only where the source may
            have some.
        problems: Dotted path and text of each field that does not go.
    """

    writing: bool
    problems: dict[str, str] = field(default_factory=dict)

    def plan(self, source: pa.Field[Any], target: pa.Field[Any], path: str) -> Node:
        """Plans one field and those below it."""
        required = not target.nullable and (self.writing or source.nullable) and not pa.types.is_null(target.type)
        if required and pa.types.is_null(source.type):
            self.problems[path] = "only NULLs, but the column is not nullable"
        try:
            step = self._step(source, target, path)
        except Inconvertible as error:
            self.problems[path] = str(error)
            step = None
        return Node(path=path, step=step, required=required)

    def _step(self, source: pa.Field[Any], target: pa.Field[Any], path: str) -> Step | None:
        have, want = storage_type(source), storage_type(target)
        if pa.types.is_null(have) and not pa.types.is_null(want):
            kind = plain_type(want)
            return lambda array: nulls(len(array), kind)
        if is_blob(target) and pa.types.is_struct(have) and extension_name(source) != BLOB_V2:
            raise Inconvertible("holds blob descriptors, not bytes: read with option blob_handling=bytes")
        if extension_name(target) == BLOB_V2 and extension_name(source) != BLOB_V2:
            return chain(plan_leaf(source, pa.field("", pa.large_binary())), _blob_writer(want))
        if pa.types.is_struct(have) and pa.types.is_struct(want):
            step = self._struct(list(have), list(want), path)
            return chain(_nulls_of_format_2_0, step) if is_descriptor(source) and have.num_fields == 2 else step
        if pa.types.is_map(have) and pa.types.is_map(want):
            return self._map(have, want, path)
        if is_list(have) and is_list(want):
            item = self.plan(have.value_field, want.value_field, f"{path}.element")
            return _list_step(item, have, want)
        if children_of(source) or children_of(target):
            raise Inconvertible(f"{have} is not converted to {want}; cast it first")
        step = plan_leaf(source, target)
        step = chain(chain(check_text(have), step), enforce_length(target)) if self.writing else step
        # Spark's TIME is of microseconds, though it travels in nanoseconds.
        return chain(whole_microseconds, step) if have == pa.time64("ns") and not self.writing else step

    def _struct(self, have: list[pa.Field[Any]], want: list[pa.Field[Any]], path: str) -> Step | None:
        found = pair_names([f.name for f in have], [f.name for f in want])
        for position, child in enumerate(have):
            if position not in found.values() and self.writing:
                self.problems[f"{path}.{child.name}"] = "the table has no such field"
        parts: list[tuple[int | None, Node, pa.DataType]] = []
        for child in want:
            inner = f"{path}.{child.name}"
            at = found.get(child.name)
            if at is None:
                parts.append((None, Node(path=inner), plain_type(child.type)))
                if not self.writing or not child.nullable:
                    self.problems[inner] = "is missing" if self.writing else "the table has no such field"
            else:
                parts.append((at, self.plan(have[at], child, inner), plain_type(child.type)))
        in_place = [at for at, _, _ in parts] == list(range(len(have)))
        if in_place and all(node.trivial for _, node, _ in parts):
            return None
        return _struct_step(parts, in_place=in_place)

    def _map(self, have: Kind, want: Kind, path: str) -> Step | None:
        # A map is laid out as a list of structs, and converted as one.
        entry = [have.key_field.with_name("key"), have.item_field.with_name("value")]
        step = self._list_of_entries(entry, want, path)
        if step is None:
            return None
        as_list = pa.list_(pa.struct(entry))

        def convert(array: Array) -> Array:
            entries = relabel_array(array, as_list)
            made = step(entries)
            return array if made is entries else made

        return convert

    def _list_of_entries(self, entry: list[pa.Field[Any]], want: Kind, path: str) -> Step | None:
        wanted = [want.key_field.with_name("key"), want.item_field.with_name("value")]
        node = Node(path=path, step=self._struct(entry, wanted, path))
        return _list_step(node, pa.list_(pa.struct(entry)), pa.list_(pa.struct(wanted)))


def pair_names(have: list[str], want: list[str]) -> dict[str, int]:
    """Returns for each wanted name the position of the one that serves it.

    That is the same name, else one that differs only in case: as in Spark, upper and lower case do
    not matter where that is unambiguous.
    """
    found = {name: have.index(name) for name in want if name in have}
    left = [i for i, name in enumerate(have) if i not in found.values()]
    for name in want:
        if name in found:
            continue
        alike = [i for i in left if have[i].lower() == name.lower()]
        rivals = [other for other in want if other not in found and other.lower() == name.lower()]
        if len(alike) == 1 and len(rivals) == 1:
            found[name] = alike[0]
    return found


def _struct_step(parts: list[tuple[int | None, Node, pa.DataType]], *, in_place: bool) -> Step:
    def step(array: Array) -> Array:
        parent = array if array.null_count else None
        # Flattened, a child is NULL wherever its struct is, so that what is hidden cannot fail.
        flat = array.flatten() if parent is not None else None
        before: list[Array] = []
        after: list[Array] = []
        for at, node, kind in parts:
            if at is None:
                after.append(nulls(len(array), kind))
                continue
            before.append(array.field(at) if flat is None or node.step is None else flat[at])
            after.append(node.run(before[-1], parent))
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
            raise Inconvertible(f"its vectors have {have.list_size} elements, the column's {want.list_size}")
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
    """Returns lists without the elements that NULL lists hide."""
    return array.take(pa.array(np.arange(len(array))))


def _hidden_nulled(array: Array) -> Array:
    """Returns vectors with NULL for the elements that NULL vectors hide."""
    size = array.type.list_size
    hidden = np.repeat(array.is_null().to_numpy(zero_copy_only=False), size)
    places = pa.array(np.arange(len(hidden)) + array.offset * size, mask=hidden)
    kind = pa.list_(pa.field("item", array.type.value_type), size)
    return assemble(kind, len(array), [validity(array)], [array.values.take(places)])


def _lists(array: Array, item: Node, want: Kind) -> Array:
    """Lists of any length to lists of any length."""
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    child = array.values.slice(first, last - first)
    made = _run_item(item, child, offsets - first)
    if made is child and _list_kind(array.type) == _list_kind(want):
        return array
    return _list_array(made, offsets - first, array, want)


def _from_vectors(array: Array, item: Node, want: Kind) -> Array:
    """Vectors to lists, or to vectors of other elements.

    The elements of NULL vectors stay where they are, hidden.
    """
    size = array.type.list_size
    child = array.values.slice(array.offset * size, len(array) * size)
    offsets = np.arange(len(array) + 1, dtype=np.int64) * size
    made = _run_item(item, child, offsets)
    if pa.types.is_fixed_size_list(want):
        return assemble(pa.list_(made.type, size), len(array), [validity(array)], [made])
    return _list_array(made, offsets, array, want)


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
    """Lists of any length to vectors, whose length every list must have.

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
            index, f"a list of {offsets[index + 1] - offsets[index]} elements does not fit a vector of {size}"
        )
    first = int(offsets[0])
    child = array.values.slice(first, int(offsets[-1]) - first)
    made = _run_item(item, child, offsets - first)
    if valid is not None:
        made = _with_gaps(made, offsets - first, valid, want)
    return assemble(pa.list_(made.type, size), len(array), [validity(array)], [made])


def _with_gaps(child: Array, offsets: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], want: Kind) -> Array:
    """Returns the elements with `size` fillers in the place of each NULL vector.

    Fillers are NULLs, or zeros where elements must not be NULL: Lance refuses a NULL element below
    a NULL vector where its field is not nullable (pylance 14, file formats 2.1 and 2.2).
    """
    size = want.list_size
    places = (offsets[:-1, None] + np.arange(size)).ravel()
    gaps = np.repeat(~valid, size)
    if want.value_field.nullable:
        return child.take(pa.array(np.where(gaps, 0, places), mask=gaps))
    child = pa.concat_arrays([child, filler_like(child)])
    return child.take(pa.array(np.where(gaps, len(child) - 1, places)))


def filler_like(array: Array) -> Array:
    """Returns one zero of an array's type."""
    zero = filler(array.type, 1)
    return relabel_array(zero, array.type)


def _nulls_of_format_2_0(array: Array) -> Array:
    """Returns blob descriptors (version 1) with NULL where the blob is NULL.

    File format 2.0 has no NULL structs: a scan yields position 1 and size 0 there. No blob that is
    empty has that position.
    """
    position, size = (array.field(i).to_numpy(zero_copy_only=False) for i in range(2))
    missing = (position == 1) & (size == 0)
    if not missing.any():
        return array
    valid = array.is_valid().to_numpy(zero_copy_only=False) & ~missing
    bitmap = buffer_of(np.packbits(valid, bitorder="little"))
    return assemble(array.type, len(array), [bitmap], [array.field(0), array.field(1)])


def _blob_writer(want: Kind) -> Step:
    """Returns the step that makes values of a blob column (version 2) of bytes."""
    kinds = [child.type for child in want]

    def step(array: Array) -> Array:
        rest = [nulls(len(array), kind) for kind in kinds[1:]]
        return assemble(pa.struct(list(want)), len(array), [validity(array)], [array, *rest])

    return step
