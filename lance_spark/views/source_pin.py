"""The identity of a view's source: a version by its number and its incarnation.

Metadata of a view are data: any writer of the view's folder can change the location of the source.
The refresh of a more powerful user would then copy another table into the view. So the table at the
location must have a known version. Only readers of a table know its incarnations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lance_spark.dataset import DatasetRef
from lance_spark.errors import VersionNotFoundError, ViewSourceError
from lance_spark.options.io_options import environment_flag
from lance_spark.stored_json import check_fields

ALLOW_VARIABLE = "LANCE_SPARK_ALLOW_UNPINNED_VIEWS"
"""Environment variable of the driver: whether sources of unknown identity are trusted."""


class _Version(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def incarnation(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePin:
    """A version of the source.

    Attributes:
        version: Its number.
        incarnation: Its incarnation, as in :class:`~lance_spark.dataset.DatasetRef`.
    """

    version: int
    incarnation: str

    @staticmethod
    def of(source: DatasetRef) -> SourcePin:
        """Returns the version of a pinned table."""
        return SourcePin(version=source.version or 0, incarnation=source.incarnation or "")

    @staticmethod
    def from_json(values: Mapping[str, Any] | None) -> SourcePin | None:
        """Returns the version of a stored JSON object, or None.

        Raises:
            ValueError: A field is missing or has another type.
        """
        if values is None:
            return None
        check_fields(values, {"version": int, "incarnation": str})
        if not 0 <= values["version"] < 1 << 63:
            raise ValueError(f"the version of the source is {values['version']}")
        return SourcePin(version=values["version"], incarnation=values["incarnation"])


def refuse_other_source(
    view: DatasetRef, source: DatasetRef, versions: Iterable[_Version | None]
) -> None:
    """Refuses a source that was created again, or whose identity is unknown.

    A view of an older release knows no version before its first refresh, and a cleanup may have
    removed all known versions. Then the source must be in the view's own folder.

    Args:
        view: The view.
        source: Location of the source.
        versions: Known versions of the source, the newest first.

    Raises:
        OptionError: The environment variable is no flag.
        ViewSourceError: The location holds another table.
    """
    for pin in versions:
        if pin is None:
            continue
        try:
            pinned = source.pin(pin.version)
        except VersionNotFoundError:
            if (source.pin(None).version or 0) < pin.version:
                raise made_anew(view, source, pin.version) from None
            continue
        if pinned.incarnation != pin.incarnation:
            raise made_anew(view, source, pin.version)
        return
    if _folder(source) != _folder(view) and not environment_flag(ALLOW_VARIABLE):
        raise ViewSourceError(
            f"The source of the view {view.uri} may be another table than at the creation of the view, because it "
            f"is in another folder, and no known version is left. Source: {source.uri}. Nothing was changed. Make the "
            f"view again, or set {ALLOW_VARIABLE}=1 if you trust all writers of the view.",
            uri=view.uri,
        )


def made_anew(view: DatasetRef, source: DatasetRef, version: int) -> ViewSourceError:
    """Returns the error about a source with another incarnation of a known version."""
    return ViewSourceError(
        f"The source of the view {view.uri} was created again, or is another table, after version {version}, which the "
        f"view knows. Source: {source.uri}. Nothing was changed. Make the view again.",
        uri=view.uri,
    )


def _folder(ref: DatasetRef) -> str:
    return ref.table_uri.rpartition("/")[0]
