"""Sources of views that a report may open.

Any writer of a listed table chooses the stored location of its source. A report sends requests,
with the options of the view's store, only to tables next to the view.
"""

from __future__ import annotations

from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError
from lance_spark.locations import is_local
from lance_spark.namespaces.access import access_of, plain_location
from lance_spark.namespaces.reference import NamespaceTable
from lance_spark.views.definition import ViewDefinition

_ELSEWHERE = (
    "The source is in another {place} than the view, and a report opens no tables elsewhere. Plan a refresh of the "
    "view, or make a report of the source."
)


def find_problem(ref: DatasetRef, view: ViewDefinition) -> str | None:
    """Returns why a report opens no source of a view; None if the source is next to the view."""
    table = NamespaceTable.of(ref.storage)
    if table is None:
        return (
            None
            if _is_beside(ref.table_uri, view.source_of(ref).uri)
            else _ELSEWHERE.format(place="folder")
        )
    try:
        is_beside = _is_named(table, ref, view)
    except LanceSparkError as error:
        return str(error)
    return None if is_beside else _ELSEWHERE.format(place="namespace")


def _is_beside(view_uri: str, source_uri: str) -> bool:
    """Tells whether a source is in the folder of a view. The last part of a URL may hide a path."""
    folder, _, name = source_uri.rpartition("/")
    is_plain = name not in ("", ".", "..") and (
        is_local(source_uri) or not set("%?#\\").intersection(name)
    )
    return is_plain and folder == view_uri.rpartition("/")[0]


def _is_named(table: NamespaceTable, ref: DatasetRef, view: ViewDefinition) -> bool:
    """Tells whether a namespace has a source next to a view, at the stored location."""
    if view.source_id is None or view.source_id[:-1] != table.table_id[:-1]:
        return False
    return access_of(table.at(view.source_id)).location == plain_location(view.source_of(ref).uri)
