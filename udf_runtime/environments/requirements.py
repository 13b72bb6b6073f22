"""Requirements of a manifest, as lines with the same meaning for any installer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from udf_runtime.errors import UdfDefinitionError, end_sentence

if TYPE_CHECKING:
    from udf_runtime.environments.manifest import Manifest

_MOST_NESTED = 20
_CHARS = 100
_PASSED_ON = ("--only-binary", "--no-binary", "--require-hashes")
_REFUSED = {
    "-e": "An editable install is a path of this machine. Give the package to py_modules.",
    "--editable": "An editable install is a path of this machine. Give the package to py_modules.",
    "-c": "Write the pins of the constraints into the requirements.",
    "--constraint": "Write the pins of the constraints into the requirements.",
}
_USER = re.compile(r"://([^/@]*)@")
_HOST = re.compile(r"://(?:\[[^\]]*\])?([^/?#@\s]*)")
_PORT = re.compile(r"[^:]*(:\d*)?")
_QUERY = re.compile(
    r"[?&#;]((?:[\w.-]*(?:token|secret|passw|pwd|credential|signature|api[-_]?key|access[-_]?key)[\w.-]*)|sig|key|auth)"
    r"=([^&#;\s]*)",
    re.IGNORECASE,
)
"""A parameter of a URL whose name suggests a secret, and its value."""

_VARIABLE = re.compile(r"\$\{[A-Z_][A-Z0-9_]*\}", re.IGNORECASE)


@dataclass(slots=True)
class Requirements:
    """Lines of requirements files, sorted by kind.

    Attributes:
        pip: Requirements, and their options.
        index_url: The last `--index-url`.
        extra_index_urls: All values of `--extra-index-url`.
        find_links: All values of `--find-links`.
        no_index: Whether `--no-index` is set.
    """

    pip: list[str] = field(default_factory=list)
    index_url: str | None = None
    extra_index_urls: list[str] = field(default_factory=list)
    find_links: list[str] = field(default_factory=list)
    no_index: bool = False

    def add(
        self, lines: Iterable[str], *, where: str, folder: str | None = None, depth: int = 0
    ) -> None:
        """Adds lines of a requirements file or of a list.

        Args:
            lines: The lines.
            where: Origin of the lines, for messages.
            folder: Base folder of relative file names; None: the lines may name no files.
            depth: Nesting depth of the file.

        Raises:
            UdfDefinitionError: A line is impossible on an executor, or holds a password.
        """
        for line in _join_lines(lines):
            refuse_password(line, where)
            if not line.startswith("-"):
                self.pip.append(_check_requirement(line, where))
                continue
            option, _, value = (
                line.replace("=", " ", 1) if line.startswith("--") else line
            ).partition(" ")
            if option in ("-r", "--requirement") and folder is not None and depth < _MOST_NESTED:
                self.read(os.path.join(folder, value.strip()), depth=depth + 1)
            elif option in _PASSED_ON:
                self.pip.append(line)
            elif not self._set_option(option, value.strip()):
                hint = _REFUSED.get(
                    option, "Leave the option out, and set it in the installer's own configuration."
                )
                raise UdfDefinitionError(
                    f"The line {line!r} of {where} cannot be done on executors. {hint}"
                )

    def _set_option(self, option: str, value: str) -> bool:
        """Sets a place of packages; returns False for another option."""
        if option in ("-i", "--index-url"):
            self.index_url = value
        elif option == "--extra-index-url":
            self.extra_index_urls.append(value)
        elif option in ("-f", "--find-links"):
            self.find_links.append(value)
        elif option == "--no-index":
            self.no_index = True
        else:
            return False
        return True

    def read(self, path: str, *, depth: int = 0) -> None:
        """Adds a requirements file, and its nested files.

        Raises:
            UdfDefinitionError: The file cannot be read, or as in :meth:`add`.
        """
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UdfDefinitionError(
                f"The requirements of a manifest cannot be read: {end_sentence(str(error))} Give the path of a "
                "requirements file."
            ) from error
        self.add(lines, where=path, folder=os.path.dirname(os.path.abspath(path)), depth=depth)

    def unpinned(self) -> list[str]:
        """Returns the requirements without a single exact version."""
        return [
            line
            for line in self.pip
            if not line.startswith("-") and not re.search(r"===|==[^*]*$|@", _strip_marker(line))
        ]


def refuse_password(text: str, where: str) -> None:
    """Raises UdfDefinitionError if a URL holds a user's password or token in clear."""
    if any(map(_is_secret_user, _USER.findall(text))) or any(
        not _PORT.fullmatch(host) for host in _HOST.findall(_USER.sub("://", text))
    ):
        hidden = "password or a token"
    elif names := [
        name for name, value in _QUERY.findall(text) if value and not _VARIABLE.fullmatch(value)
    ]:
        hidden = f"secret in the parameter {names[0]!r}"
    else:
        return
    raise UdfDefinitionError(
        f"A URL in {where} holds a {hidden}, and a manifest is stored in clear. Write ${{NAME}} in its place, and give "
        "NAME to env_vars."
    )


def _is_secret_user(user: str) -> bool:
    """Tells whether the part of a URL before the host holds more than a name and variables."""
    name, colon, password = user.partition(":")
    if colon and password:
        return not _VARIABLE.fullmatch(password)
    return name != "git" and not _VARIABLE.fullmatch(name)


def refuse_lines(text: object, where: str) -> None:
    """Raises UdfDefinitionError unless the value is a text of a single line."""
    if not isinstance(text, str) or len(text.strip().splitlines()) > 1 or "\0" in text:
        problem = (
            f"{text[:_CHARS]!r} has several lines"
            if isinstance(text, str)
            else f"{text!r} is no text"
        )
        raise UdfDefinitionError(
            f"In {where}, {problem}. Give each requirement and each URL as one line."
        )


def check_manifest(manifest: Manifest) -> None:
    """Checks the requirements and URLs of any manifest.

    Raises:
        UdfDefinitionError: A text has several lines, or holds a password.
    """
    urls = [] if manifest.index_url is None else [manifest.index_url]
    for where, texts in (
        ("pip", manifest.pip),
        ("index_url", urls),
        ("extra_index_urls", manifest.extra_index_urls),
        ("find_links", manifest.find_links),
    ):
        for text in texts:
            refuse_lines(text, where)
            refuse_password(text, where)


def requirement_name(line: str) -> str:
    """Returns the package name of a requirement, normalized as in indexes."""
    return re.sub("[-_.]+", "-", re.split(r"[\s\[<>=!~;@(]", line.strip(), maxsplit=1)[0]).lower()


def _strip_marker(line: str) -> str:
    """Returns a requirement without its marker and its hashes."""
    return line.partition(";")[0].partition(" --hash")[0].strip()


def _check_requirement(line: str, where: str) -> str:
    if line.startswith((".", "/", "~")) or (
        line.endswith((".whl", ".zip", ".tar.gz")) and "@" not in line
    ):
        raise UdfDefinitionError(
            f"The line {line!r} of {where} is a path of this machine. Give modules to py_modules. Give folders of "
            "wheels that the executors see to find_links."
        )
    return line


def _join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yields lines without comments; joins continued lines."""
    continued = ""
    for raw in lines:
        refuse_lines(raw, "a manifest")
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if line.endswith("\\"):
            continued += line[:-1].rstrip() + " "
            continue
        if continued + line:
            yield continued + line
        continued = ""
    if continued.strip():
        yield continued.strip()
