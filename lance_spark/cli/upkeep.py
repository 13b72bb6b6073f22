"""Commands for folders and the upkeep of tables, and the Spark Connect server."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from lance_spark.cli.output import make_console, print_done, print_json, print_rows, to_text
from lance_spark.cli.parameters import (
    FAILED,
    AsJson,
    Checkpoints,
    Concurrency,
    Master,
    Repair,
    StorageOptions,
    Uri,
    app,
    open_on_master,
    parse_days,
    parse_pairs,
    parse_storage,
)
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableNotFoundError
from lance_spark.integrity import check as check_table
from lance_spark.session.connect_server import serve
from lance_spark.sql.indexes import build as build_index
from lance_spark.table.connections.connection import connect, open_table
from lance_spark.table.table import Table


@app.command()
def tables(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of tables, such as data")],
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Lists the tables of a folder."""
    place = connect(folder, storage_options=parse_storage(storage))
    names = place.table_names()
    if not names and not place.exists():
        raise TableNotFoundError(place.uri, hint="The folder does not exist. Check the path.")
    if as_json:
        print_json(names)
        return
    sizes = [place.open_table(name).stats() for name in names]
    rows = [
        [
            name,
            str(size.version),
            f"{size.rows:,}",
            f"{size.fragments:,}",
            f"{size.size_bytes / 1e6:,.1f}",
        ]
        for name, size in zip(names, sizes, strict=True)
    ]
    print_rows(["table", "version", "rows", "fragments", "MB"], rows, nothing="no tables")


@app.command()
def report(
    uri: Annotated[
        str, typer.Argument(metavar="TABLE|ROOT", help="Location of a table, or folder of tables")
    ],
    path: Annotated[
        str, typer.Option("--html", metavar="FILE", help="The page, such as report.html")
    ],
    checkpoints: Checkpoints = None,
    storage: StorageOptions = None,
) -> None:
    """Writes a page about jobs, tables, columns and views. Starts no Spark."""
    options = parse_storage(storage)
    place = connect(uri, storage_options=options, checkpoint=checkpoints)
    if DatasetRef.at(place.uri, options).exists() or not place.exists():
        page = open_table(uri, storage_options=options, checkpoint=checkpoints).report()
    else:
        page = place.report()
    page.save(path)
    make_console().print(f"{path}: {page.text}", highlight=False, markup=False)


@app.command()
def index(
    uri: Uri,
    create: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Build an index of a column")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="BTREE, BITMAP, ..., FTS, or IVF_PQ and the like for vectors",
        ),
    ] = "BTREE",
    drop: Annotated[str | None, typer.Option(metavar="NAME", help="Drop an index")] = None,
    optimize: Annotated[
        bool, typer.Option("--optimize", help="Take in rows that no index serves yet")
    ] = False,
    master: Master = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Lists the indexes of a table, after any change by the options."""
    if (create is not None) + (drop is not None) + optimize > 1:
        raise typer.BadParameter("give one of --create, --drop and --optimize")
    table = open_on_master(uri, master, parse_storage(storage))
    if create is not None:
        build_index(table, [create], kind)
    if drop is not None:
        table.drop_index(drop)
    if optimize:
        table.optimize_indices()
    indexes = _describe_indexes(table)
    if as_json:
        print_json(indexes)
        return
    heads = ["index", "type", "columns", "rows", "rows not in it"]
    rows = [
        [to_text(", ".join(v) if isinstance(v, list) else v) for v in index.values()]
        for index in indexes
    ]
    print_rows(heads, rows, nothing="no indexes")


def _describe_indexes(table: Table) -> list[dict[str, object]]:
    return [
        {"name": index.name, "type": statistics.index_type, "columns": list(index.columns)}
        | {"rows": statistics.num_indexed_rows, "other_rows": statistics.num_unindexed_rows}
        for index in table.list_indices()
        for statistics in [table.index_stats(index.name)]
    ]


@app.command()
def compact(
    uri: Uri,
    target_rows: Annotated[
        int | None, typer.Option(metavar="ROWS", help="Rows that a fragment aims at")
    ] = None,
    concurrency: Concurrency = None,
    master: Master = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Rewrites small fragments, and fragments with many deleted rows."""
    table = open_on_master(uri, master, parse_storage(storage))
    print_done(
        table.compact_files(target_rows_per_fragment=target_rows, concurrency=concurrency),
        as_json=as_json,
    )


@app.command()
def cleanup(
    uri: Uri,
    older_than: Annotated[
        timedelta,
        typer.Option(
            "--older-than-days",
            parser=parse_days,
            metavar="DAYS",
            help="Age of versions that are removed",
        ),
    ] = timedelta(days=7),
    delete_unverified: Annotated[
        bool,
        typer.Option("--delete-unverified", help="Delete files that no version names, at any age"),
    ] = False,
    keep_for_streams: Annotated[
        bool, typer.Option("--keep-for-streams", help="Keep the versions that a stream still needs")
    ] = False,
    master: Master = None,
    storage: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Removes old versions; versions with tags stay."""
    result = open_on_master(uri, master, parse_storage(storage)).cleanup_old_versions(
        older_than,
        delete_unverified=delete_unverified,
        error_if_tagged_old_versions=False,
        keep_for_streams=keep_for_streams,
    )
    print_done(result, as_json=as_json)


@app.command()
def check(
    uri: Uri, repair: Repair = False, storage: StorageOptions = None, as_json: AsJson = False
) -> None:
    """Checks the files and metadata of lance-spark in a table. Exits with 1 if damage remains."""
    print_done(result := check_table(uri, parse_storage(storage), repair=repair), as_json=as_json)
    raise typer.Exit(0 if result.is_intact else FAILED)


@app.command()
def connect_server(
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOCATION",
            help="Folder of tables that SQL knows by a name; may be repeated",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Setting of Spark; may be repeated"),
    ] = None,
    allow_stored_code: Annotated[
        bool,
        typer.Option(
            "--allow-stored-code",
            help="Let SQL run UDFs that are stored with tables of the catalogs",
        ),
    ] = False,
    master: Annotated[
        str, typer.Option(metavar="MASTER", help="Spark master that runs the tasks")
    ] = "local[*]",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port to listen at")
    ] = 15002,
) -> None:
    """Runs a Spark Connect server with the planner rule and catalogs for its clients."""
    serve(
        master,
        host,
        port,
        catalogs=parse_pairs(catalog, "--catalog", "NAME=LOCATION, as in lance=/data/tables"),
        settings=parse_pairs(conf, "--conf", "KEY=VALUE"),
        allow_stored_code=allow_stored_code,
        ready=lambda url: make_console().print(f"Spark Connect server at {url}", highlight=False),
    )
