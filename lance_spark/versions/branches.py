"""Branches of a table: list, creation and deletion."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lance_spark.dataset import (
    MAIN_BRANCH,
    DatasetRef,
    branches_of,
    location_of,
    table_exists,
    tags_of,
)
from lance_spark.errors import OptionError, UnsupportedOperationError, refusals_as_errors
from lance_spark.lance_compat import plain
from lance_spark.staging.table_folder import refuse_foreign_files
from lance_spark.versions.names import check_branch_name

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch at its creation.

    LanceDB's names are keys: `branch["parent_branch"]`, which is None for the table's own branch,
    `"parent_version"` and `"create_at"`, in seconds since 1970.

    Attributes:
        name: Name of the branch.
        parent: The branch of its first version; `main` is the table's own branch.
        parent_version: The first version, on the parent.
        created_at: Time of creation, in UTC.
    """

    name: str
    parent: str
    parent_version: int
    created_at: datetime

    def __getitem__(self, key: str) -> object:
        """Returns an attribute by LanceDB's name.

        Raises:
            KeyError: No attribute has this name.
        """
        return {
            "parent_branch": None if self.parent == MAIN_BRANCH else self.parent,
            "parent_version": self.parent_version,
            "create_at": int(self.created_at.timestamp()),
        }[key]


def list_branches(dataset: lance.LanceDataset) -> list[Branch]:
    """Returns all branches of a table, sorted by name."""
    infos = dataset.branches.list()
    return [
        Branch(
            name=name,
            parent=infos[name]["parent_branch"] or MAIN_BRANCH,
            parent_version=int(infos[name]["parent_version"]),
            created_at=datetime.fromtimestamp(infos[name]["create_at"], UTC),
        )
        for name in sorted(infos)
    ]


def create_branch(
    main: DatasetRef, name: str, from_ref: int | str | None, from_version: int | None
) -> None:
    """Creates a branch, with the arguments and the errors of :meth:`Branches.create`."""
    head = main.open_latest()
    with refusals_as_errors(main.uri):
        check_branch_name(name, branches_of(head), tags_of(head))
    start = _pin_start(main, from_ref, from_version)
    with refusals_as_errors(main.uri):
        try:
            head.create_branch(name, (start.branch, start.version))
        except (ValueError, OSError) as error:
            if name in branches_of(main.open_latest()):
                raise OptionError("name", name, "a name that no branch has") from error
            place = location_of(main.uri, name)
            if not table_exists(place, main.storage):
                raise
            accepted = f"a name whose folder is free: delete {place}, what is left of an unfinished or deleted branch"
            raise OptionError("name", name, accepted) from error


def _pin_start(
    main: DatasetRef, from_ref: int | str | None, from_version: int | None
) -> DatasetRef:
    """Pins the version with which a new branch starts."""
    if from_version is None:
        return main.pin(None if from_ref == MAIN_BRANCH else from_ref, option="from_ref")
    branch = MAIN_BRANCH if from_ref is None else from_ref
    if not isinstance(branch, str):
        raise OptionError("from_ref", from_ref, "the name of a branch, beside from_version")
    return main.on_branch(branch).pin(from_version, option="from_version")


def delete_branch(main: DatasetRef, name: str) -> None:
    """Deletes a branch with all its versions and their own files.

    Raises:
        VersionNotFoundError: The table has no such branch.
        OptionError: The name is `main`.
        UnsupportedOperationError: A tag or another branch needs the branch, or its folder holds
            a link or foreign files. Nothing was deleted.
        TableUnwritableError: The store refused.
    """
    if name == MAIN_BRANCH:
        raise OptionError(
            "name", name, "a branch beside the main one; drop_table deletes the table"
        )
    branch, head = main.on_branch(name), main.open_latest()
    _refuse_dependents(branch, head)
    with refusals_as_errors(branch.uri):
        # Lance deletes the whole folder.
        refuse_foreign_files(branch)
        try:
            head.branches.delete(name)
        except (ValueError, OSError) as error:
            if name in branches_of(main.open_latest()) and "referenced" in str(error):
                raise _needed_by(
                    branch, f"branches with versions of it as their start ({plain(error)})"
                ) from error
            raise


def _refuse_dependents(branch: DatasetRef, head: lance.LanceDataset) -> None:
    """Raises an error if a tag of the branch, or a branch in its folder exists.

    Lance would delete only the files outside of the folder of the other branch. A branch with
    missing files still opens, and still takes commits.
    """
    with refusals_as_errors(branch.uri):
        nested = [name for name in branches_of(head) if name.startswith(f"{branch.branch}/")]
        tags = [tag for tag, info in tags_of(head).items() if info["branch"] == branch.branch]
    if tags:
        raise _needed_by(branch, f"the tags {', '.join(sorted(tags))}")
    if nested:
        raise _needed_by(branch, f"the branches below its name: {', '.join(nested)}")


def _needed_by(branch: DatasetRef, dependents: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"Branch {branch.branch!r} of {branch.table_uri} is needed by {dependents}. Nothing was deleted. Delete "
        "these first."
    )
