"""Column files in which no row gets a new value, staged by a commit beside the tasks' files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.commit.changes import StagedColumns
from lance_spark.rows.row_addresses import SnapshotRows
from lance_spark.staging.area import Staging, missing_data_files
from lance_spark.staging.blobs import row_field
from lance_spark.staging.column_file import ColumnFile, Targets
from lance_spark.staging.folders import remove_empty_folders

if TYPE_CHECKING:
    import lance

_DIGITS = 20


class UntouchedFiles:
    """Stages files of old values or NULLs; a :class:`~lance_spark.commit.protocols.Stage`.

    Attributes:
        names: Names of the files that were staged. Versions may name them, also where the job as a
            whole committed nothing.
    """

    def __init__(self, staging: Staging, file_format: str) -> None:
        """Takes the job's files, and the file format of the table."""
        self.names: list[str] = []
        self._staging = staging
        self._format = file_format

    def restore(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Writes a file with the values that columns have in a version's fragment."""
        return self._write(dataset, fragment_id, columns, tuple(columns))

    def blank(self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str]) -> StagedColumns:
        """Writes a file in which columns of a version's fragment are NULL."""
        return self._write(dataset, fragment_id, columns, ())

    def missing(self, names: Sequence[str]) -> list[str]:
        """Returns those data files that are not there."""
        return missing_data_files(self._staging.uri, self._staging.storage_options, names)

    def remove_remains(self, version: int) -> None:
        """Removes what a commit made where a table was deleted before, if nothing came after it."""
        session = self._staging.session
        versions = session.list("_versions")
        manifests = {number: path for path in versions if (number := _version_of(path)) is not None}
        if max(manifests, default=0) != version:
            return
        remains = [manifests[version], *(path for path in versions if path == "_versions/latest_version_hint.json")]
        if len(manifests) == 1:
            remains += [
                path for path in session.list("_transactions") if path.startswith(f"_transactions/{version - 1}-")
            ]
        for path in remains:
            session.delete_file(path)
        remove_empty_folders(self._staging.uri, made=None)

    def _write(
        self, dataset: lance.LanceDataset, fragment_id: int, columns: Sequence[str], kept: tuple[str, ...]
    ) -> StagedColumns:
        schema = pa.schema([row_field(dataset.schema.field(name)) for name in columns])
        targets = Targets(schema=schema, existing=kept, format=self._format)
        rows = SnapshotRows(dataset)
        fragment = rows.fragment(fragment_id)
        if fragment is None:
            raise KeyError(fragment_id)
        staged = ColumnFile(self._staging.begin_attempt(), rows, fragment, targets).close().staged
        self.names.append(staged.name)
        return staged


def _version_of(path: str) -> int | None:
    """Returns the version that a manifest's name says, maybe counted down; None for other files."""
    name = path.rpartition("/")[2].removesuffix(".manifest")
    if not name.isdecimal():
        return None
    return (1 << 64) - 1 - int(name) if len(name) == _DIGITS else int(name)
