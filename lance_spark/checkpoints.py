"""Where checkpoints are: beside the table, or elsewhere on any store that Lance can reach."""

from __future__ import annotations

import hashlib

from lance_spark.dataset import DatasetRef, normalize_uri
from lance_spark.objects import LanceObjects, objects_beside
from udf_runtime.checkpoint import CheckpointStore


def checkpoint_place(folder: str, uri: str) -> str:
    """Returns where a table's checkpoints are in a folder that many tables share; those of one name in two places do not share theirs.

    Args:
        folder: The shared folder, as `connect(checkpoint=...)` was given it.
        uri: Normalised location of the table.
    """
    parent, _, name = uri.rpartition("/")
    return f"{normalize_uri(folder)}/{hashlib.sha256(parent.encode()).hexdigest()[:16]}/{name.removesuffix('.lance')}"


def checkpoint_store(
    uri: str, storage_options: tuple[tuple[str, str], ...] = (), location: str | None = None
) -> CheckpointStore:
    """Returns where the checkpoints of a table are. Touches no storage.

    Args:
        uri: Normalised location of the table.
        storage_options: Options of the object store, as pairs sorted by key; they serve for both places.
        location: A folder for the checkpoints, on any store that Lance can reach; several tables may share one. None is the table's own.
    """
    beside = objects_beside(DatasetRef(uri=uri, storage_options=storage_options))
    objects = beside if location is None else LanceObjects(normalize_uri(location), storage_options)
    return CheckpointStore(objects, "checkpoints")
