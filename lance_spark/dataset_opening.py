"""Opens versions with Lance, for :mod:`lance_spark.dataset`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_spark.lance_sessions import session_of
from lance_spark.namespaces.access import managed_branch_of, version_arguments

if TYPE_CHECKING:
    import lance


def open_version(
    uri: str, version: int | None, storage: dict[str, str], options: dict[str, str] | None
) -> lance.LanceDataset:
    """Opens a version with Lance, which renews the credentials of a namespace."""
    import lance

    managed_branch = managed_branch_of(uri, storage)
    place = uri if managed_branch is None else managed_branch[0]
    dataset = lance.LanceDataset(
        place,
        version if managed_branch is None else None,
        storage_options=options,
        session=session_of(uri),
        **version_arguments(place, storage),
    )
    if managed_branch is None:
        return dataset
    # Measured: at the location of a branch, Lance would ask for the versions of the main branch.
    return dataset.checkout_version((managed_branch[1], version))
