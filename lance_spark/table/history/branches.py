"""Branches of a table: :class:`Branches`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import MAIN_BRANCH, DatasetRef, branches_of, location_of, table_exists, tags_of
from lance_spark.errors import (
    OptionError,
    UnsupportedOperationError,
    refusals_as_errors,
)
from lance_spark.lance_compat import plain
from lance_spark.staging.table_folder import refuse_foreign_files
from lance_spark.table.history.names import check_branch_name

if TYPE_CHECKING:
    import lance

    from lance_spark.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch at its creation.

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


def branches_in(dataset: lance.LanceDataset) -> list[Branch]:
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


@ARGUMENTS.methods
class Branches:
    """The branches of a table. Made by :attr:`lance_spark.Table.branches`.

    A branch starts with the rows and columns of a version. Writes to a branch change no other
    branch, and no data is copied.
    """

    def __init__(self, ref: DatasetRef, opened: Callable[[DatasetRef], Table]) -> None:
        self._main = ref.on_branch(MAIN_BRANCH)
        self._opened = opened

    def list(self) -> dict[str, Branch]:
        """Returns the branches by name, sorted, without `main`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.branches.create("trial")
            assert list(books.branches.list()) == ["trial"]
            ```
        """
        return {branch.name: branch for branch in branches_in(self._main.open_latest())}

    def create(self, name: str, from_ref: int | str | None = None, from_version: int | None = None) -> Table:
        """Creates a branch, and returns the table at the branch.

        The branch has no checkpoints, no records of computed rows, and no history of jobs.

        Args:
            name: Name of the branch: ASCII letters, digits, `.`, `-`, `_` and `/`, and no number.
            from_ref: The start: a branch, a tag, `branch:number`, or the number of a version of the
                main branch; None is the main branch.
            from_version: The version of the branch `from_ref`; None is its latest.

        Raises:
            VersionNotFoundError: The table has no such version, tag or branch.
            OptionError: The name is not valid, taken, or contradicts another branch.
            TableUnwritableError: The store refused.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            trial = books.branches.create("trial")
            trial.add([{"id": 10, "price": 100}])
            assert (trial.count_rows(), books.count_rows()) == (11, 10)
            ```
        """
        head = self._main.open_latest()
        with refusals_as_errors(self._main.uri):
            check_branch_name(name, branches_of(head), tags_of(head))
        if from_version is not None:
            branch = MAIN_BRANCH if from_ref is None else from_ref
            if not isinstance(branch, str):
                raise OptionError("from_ref", from_ref, "the name of a branch, beside from_version")
            start = self._main.on_branch(branch).pin(from_version, option="from_version")
        else:
            start = self._main.pin(from_ref, option="from_ref")
        with refusals_as_errors(self._main.uri):
            try:
                head.create_branch(name, (start.branch, start.version))
            except (ValueError, OSError) as error:
                if name in branches_of(self._main.open_latest()):
                    raise OptionError("name", name, "a name that no branch has") from error
                place = location_of(self._main.uri, name)
                if not table_exists(place, self._main.storage):
                    raise
                accepted = (
                    f"a name whose folder is free: delete {place}, what is left of an unfinished or deleted branch"
                )
                raise OptionError("name", name, accepted) from error
        return self.checkout(name)

    def checkout(self, name: str, version: int | None = None) -> Table:
        """Returns the table at a branch, for its reads and writes. This object keeps its branch.

        Args:
            name: Name of the branch, or `main`.
            version: A version of the branch to check out; None follows the latest.

        Raises:
            VersionNotFoundError: The table has no such branch, or the branch no such version.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.branches.create("trial")
            trial = books.branches.checkout("trial")
            assert trial.current_branch() == "trial"
            ```
        """
        table = self._opened(self._main.on_branch(name))
        if version is not None:
            table.checkout(version)
        return table

    def delete(self, name: str) -> None:
        """Deletes a branch with all its versions and their own files.

        Raises:
            VersionNotFoundError: The table has no such branch.
            OptionError: The name is `main`.
            UnsupportedOperationError: A tag or another branch needs the branch, or its folder holds
                a link or foreign files. Nothing was deleted.
            TableUnwritableError: The store refused.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.branches.create("trial")
            books.branches.delete("trial")
            assert books.branches.list() == {}
            ```
        """
        if name == MAIN_BRANCH:
            raise OptionError("name", name, "a branch beside the main one; drop_table deletes the table")
        branch, head = self._main.on_branch(name), self._main.open_latest()
        with refusals_as_errors(branch.uri):
            branches = branches_of(head)
            tags = [tag for tag, about in tags_of(head).items() if about["branch"] == name]
        if tags:
            raise _needed(branch, f"the tags {', '.join(sorted(tags))}")
        # Lance deletes only what the folder of the other branch does not hold, and then still opens
        # what is left, and commits to it.
        inside = [branch_name for branch_name in branches if branch_name.startswith(f"{name}/")]
        if inside:
            raise _needed(branch, f"branches below its name, {', '.join(inside)}")
        with refusals_as_errors(branch.uri):
            # Lance deletes the whole folder.
            refuse_foreign_files(branch)
            try:
                head.branches.delete(name)
            except (ValueError, OSError) as error:
                if name in branches_of(self._main.open_latest()) and "referenced" in str(error):
                    raise _needed(branch, f"branches that were made from it ({plain(error)})") from error
                raise

    def rename(self, name: str, new_name: str) -> NoReturn:
        """Refused: the folder of a branch has its name.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"Lance cannot rename a branch, whose folder has its name - {name!r} of {self._main.uri} - nothing was "
            f"changed; create({new_name!r}, {name!r}) makes one that goes on from it"
        )

    def move(self, name: str, version: int | str) -> NoReturn:
        """Refused: a branch has versions of its own.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"Lance cannot move a branch to another version - {name!r} of {self._main.uri} - nothing was changed; "
            f"checkout({name!r}).restore({version!r}) makes an older version of it the latest, and delete and create "
            "begin it anew"
        )

    def diff(self, from_branch: str) -> NoReturn:
        """Refused: versions of two branches have no common history of rows.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"branches are not compared row by row, since both give new rows the same ids - {from_branch!r} of "
            f"{self._main.uri} - compare by a key with exceptAll of two DataFrames, or use Table.diff for versions of "
            "one branch"
        )

    def cherry_pick(self, from_branch: str, dry_run: bool = False) -> NoReturn:  # noqa: ARG002 - LanceDB's parameters
        """Refused: Lance cannot apply commits of a branch to another branch.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"Lance takes no commits from one branch into another - {from_branch!r} of {self._main.uri} - nothing was "
            "changed; read the branch with Spark, and write its rows with merge_insert, or its columns with "
            "load_columns"
        )

    def __repr__(self) -> str:
        return f"Branches({list(self.list())})"


def _needed(branch: DatasetRef, what: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"the branch {branch.branch!r} is needed by {what} - {branch.table_uri} - nothing was deleted; delete these "
        "first"
    )
