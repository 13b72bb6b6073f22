"""Requirements of a manifest, as lines that any installer understands alike."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from udf_runtime.errors import UdfDefinitionError

_MOST_NESTED = 20
_PASSED_ON = ("--only-binary", "--no-binary", "--require-hashes")
_REFUSED = {
    "-e": "an editable install is a path of this machine: give the package to py_modules",
    "--editable": "an editable install is a path of this machine: give the package to py_modules",
    "-c": "write the pins of the constraints into the requirements",
    "--constraint": "write the pins of the constraints into the requirements",
}
_PASSWORD = re.compile(r"://[^/@\s:]*:(?P<password>[^/@\s]+)@|://(?P<user>[^/@\s:]+)@")
_VARIABLE = re.compile(r"\$\{[A-Z_][A-Z0-9_]*\}", re.IGNORECASE)


@dataclass(slots=True)
class Requirements:
    """Lines of requirements files, sorted by what they say.

    Attributes:
        pip: Requirements, and options that go with them.
        index_url: What `--index-url` gave last.
        extra_index_urls: What `--extra-index-url` gave.
        find_links: What `--find-links` gave.
        no_index: Whether `--no-index` was there.
    """

    pip: list[str] = field(default_factory=list)
    index_url: str | None = None
    extra_index_urls: list[str] = field(default_factory=list)
    find_links: list[str] = field(default_factory=list)
    no_index: bool = False

    def add(self, lines: Iterable[str], *, where: str, folder: str | None = None, depth: int = 0) -> None:
        """Takes lines of a requirements file, or of a list.

        Args:
            lines: The lines.
            where: Where they come from, for messages.
            folder: What files that they name are relative to; None: they may name none.
            depth: How many files they are within.

        Raises:
            UdfDefinitionError: A line means something that an executor cannot do, or holds a
                password.
        """
        for line in _logical(lines):
            option, _, value = (
                line.replace("=", " ", 1).partition(" ") if line.startswith("--") else line.partition(" ")
            )
            value = value.strip()
            refuse_password(line, where)
            if not line.startswith("-"):
                self.pip.append(_requirement(line, where))
            elif option in ("-i", "--index-url"):
                self.index_url = value
            elif option == "--extra-index-url":
                self.extra_index_urls.append(value)
            elif option in ("-f", "--find-links"):
                self.find_links.append(value)
            elif option == "--no-index":
                self.no_index = True
            elif option in ("-r", "--requirement") and folder is not None and depth < _MOST_NESTED:
                self.read(os.path.join(folder, value), depth=depth + 1)
            elif option in _PASSED_ON:
                self.pip.append(line)
            else:
                hint = _REFUSED.get(option, "leave the option out, and set it in the installer's own configuration")
                raise UdfDefinitionError(f"{line!r} cannot be done on executors - in {where} - {hint}")

    def read(self, path: str, *, depth: int = 0) -> None:
        """Takes a requirements file, and those that it names.

        Raises:
            UdfDefinitionError: It cannot be read, or as in :meth:`add`.
        """
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UdfDefinitionError(
                f"the requirements cannot be read: {error} - in a manifest - give the path of a requirements file"
            ) from error
        self.add(lines, where=path, folder=os.path.dirname(os.path.abspath(path)), depth=depth)

    def unpinned(self) -> list[str]:
        """Returns the requirements that do not name one version."""
        return [line for line in self.pip if not line.startswith("-") and not re.search(r"===|==[^*]*$|@", _name(line))]


def refuse_password(text: str, where: str) -> None:
    """Raises UdfDefinitionError where a URL holds a user's password or token in clear."""
    for found in _PASSWORD.finditer(text):
        hidden = found["password"] or found["user"]
        if not _VARIABLE.fullmatch(hidden) and (found["password"] or hidden != "git"):
            raise UdfDefinitionError(
                f"a URL holds a password or a token, and a manifest is stored in clear - in {where} - write "
                "${NAME} in its place, and give NAME to env_vars"
            )


def requirement_name(line: str) -> str:
    """Returns the name of the package that a requirement asks for, as indexes compare names."""
    return re.sub("[-_.]+", "-", re.split(r"[\s\[<>=!~;@(]", line.strip(), maxsplit=1)[0]).lower()


def _name(line: str) -> str:
    """Returns a requirement without its marker and its hashes."""
    return line.partition(";")[0].partition(" --hash")[0].strip()


def _requirement(line: str, where: str) -> str:
    if line.startswith((".", "/", "~")) or (line.endswith((".whl", ".zip", ".tar.gz")) and "@" not in line):
        raise UdfDefinitionError(
            f"{line!r} is a path of this machine - in {where} - give modules to py_modules, and folders of wheels that "
            "the executors see to find_links"
        )
    return line


def _logical(lines: Iterable[str]) -> Iterator[str]:
    """Yields lines without comments, continued ones as one."""
    held = ""
    for raw in lines:
        if not isinstance(raw, str):
            raise UdfDefinitionError(f"{raw!r} is no requirement - in a manifest - give text, as 'numpy==2.1.0'")
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if line.endswith("\\"):
            held += line[:-1].rstrip() + " "
            continue
        if held + line:
            yield held + line
        held = ""
    if held.strip():
        yield held.strip()
