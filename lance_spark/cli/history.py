"""Commands for the history of a table: versions, tags, branches."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from lance_spark.cli.output import make_console, print_json, print_rows, show_moment, show_number
from lance_spark.cli.parameters import AsJson, Limit, StorageOptions, Uri, app, parse_storage
from lance_spark.dataset import parse_version
from lance_spark.table.connections.connection import open_table


@app.command()
def versions(
    uri: Uri, limit: Limit = 20, storage: StorageOptions = None, as_json: AsJson = False
) -> None:
    """Lists the versions of a table, newest last, with the operations behind them."""
    versions_shown = open_table(uri, storage_options=parse_storage(storage)).versions[-limit:]
    if as_json:
        print_json(versions_shown)
        return
    heads = [
        "version",
        "time",
        "rows",
        "fragments",
        "MB",
        "operation",
        "by",
        "added",
        "removed",
        "message",
    ]
    rows = [
        [
            str(version.version),
            show_moment(version.timestamp),
            f"{version.rows:,}",
            f"{version.fragments:,}",
            f"{version.bytes / 1e6:,.1f}",
            version.operation,
            version.user or "",
            show_number(version.rows_added),
            show_number(version.rows_removed),
            version.message or "",
        ]
        for version in versions_shown
    ]
    print_rows(heads, rows, nothing="no versions")


@app.command()
def tags(uri: Uri, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Lists the tags of a table, and their versions."""
    numbers = open_table(uri, storage_options=parse_storage(storage)).tags.list()
    if as_json:
        print_json(numbers)
        return
    print_rows(
        ["tag", "version"],
        [[name, str(number)] for name, number in numbers.items()],
        nothing="no tags",
    )


@app.command()
def branches(uri: Uri, storage: StorageOptions = None, as_json: AsJson = False) -> None:
    """Lists the branches of a table, with their parents."""
    branch_list = open_table(uri, storage_options=parse_storage(storage)).branches.list().values()
    if as_json:
        print_json(
            [
                {**dataclasses.asdict(branch), "created_at": branch.created_at.isoformat()}
                for branch in branch_list
            ]
        )
        return
    rows = [
        [branch.name, f"{branch.parent}:{branch.parent_version}", show_moment(branch.created_at)]
        for branch in branch_list
    ]
    print_rows(["branch", "from", "made"], rows, nothing="no branches")


@app.command()
def restore(
    uri: Uri,
    to: Annotated[str, typer.Argument(metavar="VERSION", help="Number of a version, or a tag")],
    storage: StorageOptions = None,
) -> None:
    """Makes an older version the latest, as a new version."""
    table = open_table(uri, storage_options=parse_storage(storage))
    table.restore(parse_version(to))
    make_console().print(
        f"version {to} is the latest again, as version {table.version}", highlight=False
    )
