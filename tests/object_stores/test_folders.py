"""A drop on an object store deletes only names of a table; no table is created among foreign objects."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark.errors import UnsupportedOperationError
from lance_spark.storage.objects import LanceObjects
from tests.object_stores.stores import Store
from tests.support.planted import FOREIGN

pytestmark = pytest.mark.cluster

ROWS = pa.table({"id": [1, 2, 3]})


def test_a_drop_deletes_the_table_with_branches_and_nothing_of_others(store: Store):
    place = store.place()
    db = lance_spark.connect(place.folder, storage_options=place.storage)
    table = db.create_table("t", ROWS)
    table.add(ROWS)
    dataset = place.open()
    dataset.tags.create("first", 1)
    dataset.create_scalar_index("id", "BTREE")
    lance.write_dataset(
        ROWS, dataset.create_branch("dev/one", 1), mode="append", storage_options=place.storage
    )
    objects = LanceObjects(place.uri, tuple(sorted(place.storage.items())))
    foreign = sorted(set(FOREIGN) - {"other.lance/_versions/1.manifest"})
    for name in foreign:
        objects.put(name, b"of others")
    assert len(place.objects()) > len(foreign) + 10
    db.drop_table("t")
    assert place.objects() == foreign


def test_no_table_is_made_among_objects_of_others(store: Store):
    place = store.place()
    db = lance_spark.connect(place.folder, storage_options=place.storage)
    objects = LanceObjects(place.uri, tuple(sorted(place.storage.items())))
    for name in ("notes.txt", "data/customers.csv", "deep/er/x"):
        objects.put(name, b"of others")
        with pytest.raises(UnsupportedOperationError, match="belong to no Lance table"):
            db.create_table("t", ROWS)
        assert place.objects() == [name]
        objects.delete(name)
    assert db.create_table("t", ROWS).to_arrow() == ROWS


def test_names_of_tables_are_listed_without_opening_a_table(store: Store):
    place = store.place()
    db = lance_spark.connect(place.folder, storage_options=place.storage)
    assert db.table_names() == []
    names = ["a b", "per cent %", "t", "wörter"]
    for name in names:
        db.create_table(name, ROWS)
    objects = LanceObjects(place.folder, tuple(sorted(place.storage.items())))
    objects.put("half.lance/data/1.lance", b"of a killed write")
    objects.put("notes.lance/_versions/1.txt", b"of others")
    objects.put("damaged.lance/_versions/1.manifest", b"no manifest")
    assert db.table_names() == ["a b", "damaged", "per cent %", "t", "wörter"]
    db.drop_table("t")
    assert "t" not in db.table_names()
