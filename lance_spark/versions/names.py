"""Names of tags and branches: the names that may be created."""

from __future__ import annotations

import re
from collections.abc import Collection

from lance_spark.dataset import MAIN_BRANCH
from lance_spark.errors import OptionError

_FOLDERS = ("data", "tree")
"""Folders of a table that do not begin with an underscore."""

_LETTERS = "ASCII letters, digits, '.', '-' and '_'"


def check_tag_name(tag: object, branches: Collection[str]) -> None:
    """Checks the name of a new tag.

    Raises:
        OptionError: Lance cannot list a tag of this name, or the name means something else.
    """
    is_valid = isinstance(tag, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", tag)
    if not is_valid or ".." in str(tag) or str(tag).endswith((".", ".lock")):
        raise OptionError(
            "tag",
            tag,
            f"a name of {_LETTERS} that begins with no dot, has no '..' and ends in no '.' or '.lock'",
        )
    if str(tag).isdecimal():
        raise OptionError("tag", tag, "a name that is no number, because a number means a version")
    if tag == MAIN_BRANCH or tag in branches:
        raise OptionError("tag", tag, "a name that no branch has")


def is_possible_tag(tag: str) -> bool:
    """Tells whether another writer can have made a tag: Lance also takes letters outside ASCII."""
    return all(character.isalnum() or character in ".-_/" for character in tag)


def check_branch_name(name: object, branches: Collection[str], tags: Collection[str]) -> None:
    """Checks the name of a new branch.

    The parts of a name are folders in folders: a branch `b/_versions` would lie where the versions
    of `b` are. With a branch `b/c`, the branch `b` could not be deleted as a whole.

    Raises:
        OptionError: Lance does not take the name, or would destroy something with it.
    """

    def refuse(accepted: str) -> OptionError:
        return OptionError("name", name, accepted)

    if not isinstance(name, str) or not re.fullmatch(
        r"[\w.-]+(/[\w.-]+)*(?<!\.lock)", name, re.ASCII
    ):
        raise refuse(f"a name of {_LETTERS}, in parts divided by '/'")
    if name.isdecimal() or name == MAIN_BRANCH:
        raise refuse(
            "a name that is neither a number, which means a version, nor that of the main branch"
        )
    if any(map(_is_reserved, name.split("/"))):
        raise refuse(
            f"no part that begins with '_', has '..', or is {' or '.join(map(repr, _FOLDERS))}"
        )
    if name in {*branches, *tags}:
        raise refuse("a name that no branch and no tag has")
    for branch in branches:
        if name.startswith(f"{branch}/") or branch.startswith(f"{name}/"):
            raise refuse(f"a name that is not in the folder of another branch, as with {branch!r}")


def _is_reserved(part: str) -> bool:
    return part in (".", *_FOLDERS) or part.startswith("_") or ".." in part
