"""A store in tests, and a table in the store."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import lance
from lance.file import LanceFileSession

from lance_spark.dataset import DatasetRef

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class StorePlace:
    """A location in an object store with a present or future table. Can be sent to other processes."""

    uri: str
    storage: dict[str, str]

    @property
    def ref(self) -> DatasetRef:
        return DatasetRef.at(self.uri, self.storage)

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2].removesuffix(".lance")

    @property
    def folder(self) -> str:
        return self.uri.rpartition("/")[0]

    def open(self, version: int | None = None) -> lance.LanceDataset:
        return lance.dataset(self.uri, version=version, storage_options=self.storage)

    def contents(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.open().to_table().to_pylist()
        return rows

    def column(self, name: str) -> dict[int, Any]:
        """Returns a column by `id`."""
        rows = self.open().to_table(columns=["id", name]).to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a row is there twice"
        return {row["id"]: row[name] for row in rows}

    def objects(self) -> list[str]:
        """Returns the names of all objects below the location."""
        return sorted(LanceFileSession(self.uri, storage_options=self.storage).list())

    def orphans(self) -> set[str]:
        """Returns data files without a reference in any version, and leftovers of jobs in the staging folder."""
        referenced_files = {
            f"data/{file.path}"
            for version in self.open().versions()
            for fragment in self.open(version["version"]).get_fragments()
            for file in fragment.metadata.files
        }
        return {
            name
            for name in self.objects()
            if (name.startswith("data/") and name not in referenced_files)
            or name.startswith("_lance_spark/staging")
        }


@dataclass(frozen=True, kw_only=True)
class Store:
    """A running object store.

    Attributes:
        root: URI of its bucket or container.
        storage: Options for Lance.
    """

    root: str
    storage: dict[str, str]

    def place(self, name: str = "table") -> StorePlace:
        """Returns a location without a table."""
        return StorePlace(uri=f"{self.root}/{name}-{next(_numbers)}/t.lance", storage=self.storage)


def strays(place: StorePlace) -> set[str]:
    """Returns the objects of a table and its side tables without a version, outside of the stored UDFs."""
    names = set(place.objects())
    sides = {match[0] for name in names if (match := re.match(r"_lance_spark/\w+\.lance", name))}
    own = {
        name
        for name in names
        if not name.startswith((*(f"{side}/" for side in sides), "_lance_spark/udfs/"))
    }
    dataset = place.open()
    for version in dataset.versions():
        snapshot = dataset.checkout_version(version["version"])
        own -= named_objects(snapshot)
        folders = tuple(
            f"_indices/{part.uuid}/"
            for index in snapshot.describe_indices()
            for part in index.segments
        )
        own = {name for name in own if not name.startswith(folders)}
    # Lance deletes transactions together with their versions.
    stray_names = {name for name in own if not name.startswith(("_versions/", "_transactions/"))}
    for side in sides:
        stray_names |= {
            f"{side}/{name}"
            for name in strays(StorePlace(uri=f"{place.uri}/{side}", storage=place.storage))
        }
    return stray_names


def named_objects(dataset: lance.LanceDataset) -> set[str]:
    """Returns data files and deletion files of a version."""
    names: set[str] = set()
    for fragment in dataset.get_fragments():
        names |= {f"data/{file.path}" for file in fragment.metadata.files}
        deletions = fragment.metadata.deletion_file
        if deletions is not None:
            names.add(deletions.path(fragment.fragment_id))
    return names
