"""Locations of tables: their form for comparisons, and the right spelling of wrong locations."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from urllib.parse import SplitResult, unquote, urlsplit

from lance_spark.errors import OptionError

_STORES = (
    *("abfss", "az", "cos", "file+uring", "file-object-store", "goosefs", "gs"),
    *("hf", "memory", "oss", "s3", "s3+ddb", "shared-memory", "tos"),
)
"""The schemes that Lance has a store for, beside `file`."""

_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "cosn": "cos"}
"""Schemes of Hadoop's connectors, and Lance's for the same store."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")

_CUT = re.compile(r"[#?]")
_MISREAD = re.compile(r"[#?]|%[0-9A-Fa-f]{2}")
"""Signs in a URI: Lance drops the rest of the URI after the first two, and decodes the third."""


def normalize_uri(
    uri: str | os.PathLike[str], *, option: str = "path", also: Collection[str] = ()
) -> str:
    """Returns a location in the form for comparisons. A local path is absolute, without `file:`.

    Args:
        uri: A local path, or a URI with a scheme of Lance.
        option: Name of the argument, for the message.
        also: More schemes, of stores of PyArrow.

    Raises:
        OptionError: The location is empty, names no bucket, has an unknown scheme, has spaces
            around a URI, or has a `#` or `?` in a URI of Lance. The message has the right spelling.
    """
    uri = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
    if not isinstance(uri, str) or not uri.strip() or "\0" in uri:
        raise _no_location(uri, option)
    scheme_match = _SCHEME.match(uri.strip())
    if scheme_match is None:
        return os.path.abspath(os.path.expanduser(uri))
    if uri != uri.strip():
        raise OptionError(option, uri, repr(uri.strip()), problem="has spaces around a URI")
    scheme, rest = scheme_match[1].lower(), uri[scheme_match.end() :]
    if scheme == "file":
        return os.path.abspath(unquote(_file_path(uri, option)))
    if scheme in (*_STORES, *also) and rest.startswith("//"):
        if not rest.strip("/"):
            raise OptionError(option, uri, f"{scheme}://bucket/path", problem="names no bucket")
        if not also:  # PyArrow's URIs have options after the sign
            _refuse_cut(uri, scheme, rest, option)
        return f"{scheme}:{rest.rstrip('/')}"
    raise OptionError(
        option, uri, _spelling(scheme, rest), problem="has no scheme that Lance knows"
    )


def _refuse_cut(uri: str, scheme: str, rest: str, option: str) -> None:
    """Raises for signs after which Lance drops the rest of a URI."""
    # The store with versions in DynamoDB has the name of a table there after the first sign.
    path = rest.partition("?")[0] if scheme == "s3+ddb" else rest
    if _CUT.search(path):
        spelling = f"{scheme}:{path.replace('#', '%23').replace('?', '%3F')}"
        raise OptionError(
            option,
            uri,
            spelling,
            problem="has a # or ?, and Lance ignores the rest of a URI after it",
        )


def is_misread(folder: str, name: str) -> bool:
    """Tells whether Lance reads another name at the end of a URI, as for `a#b` and `a%41`.

    Names at a path of a file system are read as they are.
    """
    return not is_local(folder) and _MISREAD.search(name) is not None


def _no_location(uri: object, option: str) -> OptionError:
    text = (
        repr(uri)
        if isinstance(uri, str)
        else None
        if uri is None
        else f"a value of type {type(uri).__name__}"
    )
    return OptionError(option, text, "a local path, or a URI such as s3://bucket/path")


def is_local(uri: str) -> bool:
    """Tells whether a normalised location is on a mounted file system."""
    return "://" not in uri


def _file_path(uri: str, option: str) -> str:
    parts: SplitResult = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise OptionError(
            option, uri, f"file:///{parts.netloc}{parts.path}", problem="names another machine"
        )
    if parts.query or parts.fragment:
        raise OptionError(option, uri, "a file URI with %3F for ? and %23 for #, or a plain path")
    return parts.path


def _spelling(scheme: str, rest: str) -> str:
    """Returns the right spelling of a location with this scheme."""
    path = rest.lstrip("/")
    if scheme == "dbfs":
        return f"/dbfs/{path}"
    if len(scheme) == 1:
        return "a path of this machine's file system, for example /mnt/c/folder"
    store = _OTHER_NAMES.get(scheme, scheme)
    if store in _STORES:
        return f"{store}://{path}"
    local = (
        "a path of a mounted file system"
        if rest.startswith("/")
        else f"./{scheme}:{rest} for a local file"
    )
    return f"{local}, or a URI that begins with {'://, '.join(_STORES)}://"
