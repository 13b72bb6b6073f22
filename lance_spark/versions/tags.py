"""Tags of a table: names of versions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import DatasetRef, branches_of, tags_of
from lance_spark.errors import OptionError, VersionNotFoundError, refusals_as_errors
from lance_spark.lance_compat import is_missing, plain
from lance_spark.versions.names import check_tag_name, is_possible_tag

if TYPE_CHECKING:
    import lance


class TagVersion(int):
    """The version of a tag: a number with LanceDB's keys `version` and `manifest_size`.

    Attributes:
        manifest_size: Bytes of the manifest of the version.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.tags.create("launch", 1)
        tag = books.tags.list()["launch"]
        assert tag == 1 and tag["version"] == 1
        ```
    """

    manifest_size: int

    def __new__(cls, version: int, manifest_size: int = 0) -> Self:
        """Makes the version of a tag."""
        tag = super().__new__(cls, version)
        tag.manifest_size = manifest_size
        return tag

    def __reduce__(self) -> tuple[object, ...]:
        return TagVersion, (int(self), self.manifest_size)

    def __getitem__(self, key: str) -> int:
        """Returns the value of LanceDB's key `version` or `manifest_size`."""
        return {"version": int(self), "manifest_size": self.manifest_size}[key]


@ARGUMENTS.methods
class Tags:
    """The tags of a table's branch: names of versions. Made by :attr:`lance_spark.Table.tags`.

    A tag is no version of its own. A cleanup keeps tagged versions. All tags of a table have
    different names, on all branches.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.tags.create("launch", 1)
        assert books.tags.list() == {"launch": 1}
        ```
    """

    def __init__(self, ref: DatasetRef) -> None:
        self._ref = ref

    def list(self) -> dict[str, TagVersion]:
        """Returns the versions of this branch by tag, sorted by the names of the tags.

        A version is a number with LanceDB's keys: `tags.list()["launch"]["version"]`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            assert books.tags.list() == {"launch": 1}
            ```
        """
        infos = tags_of(self._ref.open_latest())
        return {
            name: TagVersion(int(infos[name]["version"]), int(infos[name]["manifest_size"]))
            for name in sorted(infos)
            if infos[name]["branch"] == self._ref.branch
        }

    def get_version(self, tag: str) -> int:
        """Returns the version of a tag.

        Raises:
            VersionNotFoundError: The branch has no such tag.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            assert books.tags.get_version("launch") == 1
            ```
        """
        versions = self.list()
        if tag not in versions:
            raise self._unknown_error(tag, versions)
        return int(versions[tag])

    def create(self, tag: str, version: int | str) -> None:
        """Creates a tag.

        Args:
            tag: Name of the tag: ASCII letters, digits, `.`, `-` and `_`, and no number.
            version: A version, another tag, or `branch:number`.

        Raises:
            VersionNotFoundError: The table has no such version.
            OptionError: The name is not valid, or taken.
            TableUnwritableError: The store refused.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", books.version)
            assert "launch" in books.tags.list()
            ```
        """
        head = self._of_branch(version)
        with refusals_as_errors(self._ref.uri):
            check_tag_name(tag, branches_of(head))
            try:
                head.tags.create(tag, head.version)
            except (ValueError, OSError, TypeError) as error:
                if isinstance(error, OSError) and not is_missing(error):
                    raise
                raise OptionError(
                    "tag", tag, f"a name that is valid, and not taken ({plain(error)})"
                ) from error

    def update(self, tag: str, version: int | str) -> None:
        """Moves a tag to a version.

        Raises:
            VersionNotFoundError: The branch has no such tag, or no such version.
            TableUnwritableError: The store refused.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            books.delete("price > 50")
            books.tags.update("launch", 2)
            assert books.tags.get_version("launch") == 2
            ```
        """
        self.get_version(tag)
        head = self._of_branch(version)
        with self._changing(tag):
            head.tags.update(tag, head.version)

    def delete(self, tag: str) -> None:
        """Deletes a tag; the version stays until it is cleaned up.

        Tags of other writers with letters outside ASCII are deleted too. Lance can list no tags of
        the table until then.

        Raises:
            VersionNotFoundError: There is no such tag.
            TableUnwritableError: The store refused.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.tags.create("launch", 1)
            books.tags.delete("launch")
            assert books.tags.list() == {}
            ```
        """
        if str(tag).isascii():
            self.get_version(tag)
        elif not is_possible_tag(tag):
            raise VersionNotFoundError(
                self._ref.uri, tag, available="Lance has no tag with such a character"
            )
        with self._changing(tag):
            self._ref.open_latest().tags.delete(tag)

    def _of_branch(self, version: int | str) -> lance.LanceDataset:
        """Opens a version. Lance creates a tag in the branch of the open version."""
        return self._ref.pin(version).open()

    @contextlib.contextmanager
    def _changing(self, tag: str) -> Iterator[None]:
        """Translates Lance's errors for a change of an existing tag."""
        with refusals_as_errors(self._ref.uri):
            try:
                yield
            except ValueError as error:  # the tag, or the version, was deleted in this moment
                raise VersionNotFoundError(self._ref.uri, tag, available=plain(error)) from error

    def _unknown_error(self, tag: str, versions: Mapping[str, int]) -> VersionNotFoundError:
        names = f"its tags are {', '.join(versions)}" if versions else "it has no tags"
        return VersionNotFoundError(self._ref.uri, tag, available=names)

    def __repr__(self) -> str:
        return f"Tags({self.list()})"
