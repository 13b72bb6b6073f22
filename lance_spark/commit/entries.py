"""Entries of manifests for column files that no version names yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lance_spark.commit.changes import StagedColumns

if TYPE_CHECKING:
    import lance
    from lance.fragment import DataFile, FragmentMetadata


def data_files(dataset: lance.LanceDataset, staged: Sequence[StagedColumns]) -> list[DataFile]:
    """Returns the entries for files that all hold the same columns, with this version's field ids.

    pylance reads the footer of one of them for that; the others differ only in name and size.
    """
    from lance.fragment import DataFile

    if not staged:
        return []
    first = DataFile.create(dataset, staged[0].name)
    return [same_columns(first, file) for file in staged]


def same_columns(like: DataFile, staged: StagedColumns) -> DataFile:
    """Returns the entry of a file that holds the same columns as another one."""
    from lance.fragment import DataFile

    return DataFile(
        staged.name,
        list(like.fields),
        list(like.column_indices),
        like.file_major_version,
        like.file_minor_version,
        staged.size_bytes,
    )


def file_named(fragment: FragmentMetadata, name: str) -> DataFile | None:
    """Returns the entry of a data file of a fragment by its name, or None."""
    return next((file for file in fragment.files if file.path == name), None)
