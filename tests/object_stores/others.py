"""Changes by other writers to a table of `id`, `text` (the input), `other` and `c` (the target) in an object store,
during the computation of `c`.

Ids are 0 to 29, ten in each of three fragments; `text` is `t<id>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.object_stores.stores import StorePlace

ALL = list(range(30))
UPDATED = (3, 4, 25)
REWRITTEN = (5, 6)


def append(place: StorePlace) -> None:
    schema = place.open().schema
    row = {"id": 1000, "text": "new", "other": 5}
    data = pa.Table.from_pylist([{name: row.get(name) for name in schema.names}], schema=schema)
    lance.write_dataset(data, place.uri, mode="append", storage_options=place.storage)


def delete_rows(place: StorePlace) -> None:
    place.open().delete("id % 5 = 1")


def update_an_input(place: StorePlace) -> None:
    """Moves rows with changed inputs."""
    place.open().update({"text": "'changed'"}, where=f"id IN {UPDATED}")


def rewrite_an_input_in_place(place: StorePlace) -> None:
    source = pa.table({"id": REWRITTEN, "text": ["changed"] * len(REWRITTEN)})
    place.open().merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(
        source
    )


def compact(place: StorePlace) -> None:
    assert place.open().optimize.compact_files().fragments_removed


def drop_the_column(place: StorePlace) -> None:
    place.open().drop_columns(["c"])


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A concurrent change, and its effect on the computed values; the defaults are those of an unrelated change.

    Attributes:
        act: The change.
        deleted: Deleted rows.
        new: Added rows.
        carried: Rows whose values follow them to other places, or into a new file of a changed fragment.
        changed: Rows with a changed input.
    """

    act: Callable[[StorePlace], None]
    deleted: Iterable[int] = ()
    new: Iterable[int] = ()
    carried: int = 0
    changed: Iterable[int] = ()

    def values(self, of_changed: Callable[[int], int | None]) -> dict[int, int | None]:
        """Returns the expected values of the column, by id."""
        stayed = {i: i * 10 for i in ALL if i not in set(self.deleted)}
        return {**stayed, **{i: of_changed(i) for i in self.changed}, **dict.fromkeys(self.new)}


COMMITTED = [
    Scenario(act=append, new=[1000]),
    Scenario(act=delete_rows, deleted=[i for i in ALL if i % 5 == 1]),
    Scenario(act=update_an_input, changed=UPDATED),
    # The other rows of the fragment, whose column file is rewritten.
    Scenario(act=rewrite_an_input_in_place, changed=REWRITTEN, carried=10 - len(REWRITTEN)),
    Scenario(act=compact, carried=len(ALL)),
]
"""One of each kind: every path by which a commit reads or writes a store. The table of conflicts covers the outcome of
each operation.
"""

IMPOSSIBLE: list[tuple[Callable[[StorePlace], None], str]] = [(drop_the_column, "drop")]


def work_of_others(place: StorePlace) -> list[dict[str, Any]]:
    """Returns everything but the target, in order of the ids."""
    rows = [{k: v for k, v in row.items() if k != "c"} for row in place.contents()]
    return sorted(rows, key=lambda row: row["id"])


def on_stores(names: str, cases: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Each case on each store. On the second store, all but the last case run only in `make test-long`, because a
    store's part in a commit is the same.
    """
    params = [
        pytest.param(
            store,
            *case,
            id=f"{store}-{getattr(case[0], 'act', case[0]).__name__}",
            marks=pytest.mark.long if store == "az" and case is not cases[-1] else (),
        )
        for store in ("s3", "az")
        for case in cases
    ]
    return pytest.mark.parametrize(f"store, {names}", params, indirect=["store"])
