"""Calls that name a location without a table, and calls of a table that was dropped: an error with the location, and no new file."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lance_spark
from lance_spark import Table, TableNotFoundError, TableUnreadableError, Tags
from lance_spark.table.branches import Branches
from tests.support.inline_jobs import NoSpark, inline_tasks
from tests.wrong_arguments.subjects import OBJECTS, SUBJECTS, CallFolder, make_template
from tests.wrong_arguments.values import judge

BY_LOCATION: dict[str, Callable[[str], object]] = {
    "check": lance_spark.check,
    "check with repair": lambda uri: lance_spark.check(uri, repair=True),
    "cleanup": lambda uri: lance_spark.cleanup(uri, older_than=timedelta(0)),
    "last_commit": lance_spark.last_commit,
    "open_table": lance_spark.open_table,
    "open_table of a connection": lambda uri: lance_spark.connect(
        uri.rpartition("/")[0]
    ).open_table("nope"),
    "drop_table": lambda uri: lance_spark.connect(uri.rpartition("/")[0]).drop_table("nope"),
    "rename_table": lambda uri: lance_spark.connect(uri.rpartition("/")[0]).rename_table(
        "nope", "other"
    ),
}
LOCATIONS: dict[str, Callable[[Path], object]] = {
    "absent": lambda location: None,
    "an empty folder": lambda location: location.mkdir(),
    "a folder of another program": lambda location: (
        location.mkdir(),
        (location / "x.txt").touch(),
    ),
    "a file": lambda location: location.touch(),
}
WITHOUT_STORAGE = frozenset(
    {
        "Table.branches", "Table.checkout_latest", "Table.current_branch", "Table.get_reference", "Table.merge_insert", "Table.search", "Table.tags",
        "Table.take_offsets", "Table.take_row_ids", "Table.to_spark", "Table.watch", "Branches.cherry_pick", "Branches.diff", "Branches.move", "Branches.rename",
    }
)  # fmt: skip
"""Methods without access to storage: another object reads later, or the method refuses every table."""


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("call", BY_LOCATION)
def test_a_location_without_a_table_is_an_error_that_names_it(
    call: str, location: str, tmp_path: Path
):
    path = tmp_path / "nope.lance"
    LOCATIONS[location](path)
    before = files(tmp_path)
    with pytest.raises((TableNotFoundError, TableUnreadableError)) as caught:
        BY_LOCATION[call](str(path))
    assert str(path) in str(caught.value)
    assert files(tmp_path) == before


class DroppedTables(CallFolder):
    """Tables that are dropped right after their opening; their jobs run in this process."""

    @property
    def table(self) -> Table:
        session: Any = NoSpark()
        table = lance_spark.connect(str(self.folder), session, progress=False).open_table("t")
        shutil.rmtree(table.uri)
        return table


def calls_of_table() -> Iterator[tuple[str, Callable[[DroppedTables], object]]]:
    """Yields the public methods and properties of a table, its tags and its branches."""
    for kind in (Table, Tags, Branches):
        for member, value in inspect.getmembers_static(kind):
            name = f"{kind.__name__}.{member}"
            if member.startswith("_") or name in WITHOUT_STORAGE:
                continue
            if name in SUBJECTS:
                yield name, lambda at, subject=SUBJECTS[name]: subject.call(at, {})
            elif inspect.isfunction(value):
                yield (
                    name,
                    lambda at, kind=kind, member=member: getattr(OBJECTS[kind](at), member)(),
                )
            else:
                yield name, lambda at, kind=kind, member=member: getattr(OBJECTS[kind](at), member)


def test_every_method_of_a_dropped_table_is_an_error_that_names_it_and_makes_no_file(
    tmp_path: Path,
):
    at = DroppedTables(make_template(tmp_path / "template"), tmp_path / "db")
    faults = []
    for name, call in calls_of_table():
        at.reset()
        remaining = [path for path in files(at.folder) if not path.startswith(at.uri)]
        with inline_tasks():
            outcome = judge("uri", at.uri, lambda call=call: call(at))
        if not isinstance(outcome.error, TableNotFoundError) or at.uri not in str(outcome.error):
            faults.append(f"{name}: {outcome}")
        if files(at.folder) != remaining:
            faults.append(f"{name}: makes files")
    assert not faults, "\n".join(faults)
