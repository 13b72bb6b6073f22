"""Branches of a table: :class:`Branches`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import MAIN_BRANCH, DatasetRef
from lance_spark.errors import UnsupportedOperationError
from lance_spark.versions.branches import Branch, create_branch, delete_branch, list_branches

if TYPE_CHECKING:
    from lance_spark.table.table import Table


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
        return {branch.name: branch for branch in list_branches(self._main.open_latest())}

    def create(
        self, name: str, from_ref: int | str | None = None, from_version: int | None = None
    ) -> Table:
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
        create_branch(self._main, name, from_ref, from_version)
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
        delete_branch(self._main, name)

    def rename(self, name: str, new_name: str) -> NoReturn:
        """Refused: the folder of a branch has its name.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"Lance cannot rename branch {name!r} of {self._main.uri}, because its folder has its name. Nothing was "
            f"changed. Continue the branch under the new name with create({new_name!r}, {name!r})."
        )

    def move(self, name: str, version: int | str) -> NoReturn:
        """Refused: a branch has versions of its own.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"Lance cannot move branch {name!r} of {self._main.uri} to another version. Nothing was changed. "
            f"Make an older version the latest with checkout({name!r}).restore({version!r}), or delete the branch and "
            "create it again."
        )

    def diff(self, from_branch: str) -> NoReturn:
        """Refused: versions of two branches have no common history of rows.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"Rows of two branches cannot be compared by their ids, as with branch {from_branch!r} of "
            f"{self._main.uri}: both branches give new rows the same ids. Compare two DataFrames by a key with "
            "exceptAll, or versions of one branch with Table.diff."
        )

    def cherry_pick(self, from_branch: str, dry_run: bool = False) -> NoReturn:  # noqa: ARG002 - LanceDB's parameters
        """Refused: Lance cannot apply commits of a branch to another branch.

        Raises:
            UnsupportedOperationError: Always.
        """
        raise UnsupportedOperationError(
            f"Lance cannot apply commits of branch {from_branch!r} of {self._main.uri} to another branch. Nothing was "
            "changed. Read the branch with Spark, and write its rows with merge_insert, or its columns with "
            "load_columns."
        )

    def __repr__(self) -> str:
        return f"Branches({list(self.list())})"
