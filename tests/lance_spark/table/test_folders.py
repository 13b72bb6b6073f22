"""A table's folder: allowed places, the files that a drop deletes, and the state after a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import lance_spark
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import TableNotFoundError, UnsupportedOperationError
from lance_spark.options.io_options import WriteOptions
from lance_spark.staging.area import new_id
from lance_spark.staging.table_folder import delete_table_folder, has_leftovers
from lance_spark.storage.objects import LanceObjects
from lance_spark.write.append_writer import LanceAppendWriter
from tests.support.planted import FOREIGN, picture, plant

ROWS = pa.table({"id": list(range(300)), "text": [f"word{i % 7} and more" for i in range(300)]})


@pytest.fixture
def db(tmp_path: Path) -> lance_spark.Connection:
    return lance_spark.connect(str(tmp_path / "tables"))


def full_table(uri: str) -> lance.LanceDataset:
    """Makes a table with versions, deletions, indexes, tags, a branch and files of our own."""
    dataset = lance.write_dataset(ROWS, uri, enable_stable_row_ids=True)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.delete("id = 3")
    dataset.tags.create("first", 1)
    branch = dataset.create_branch("dev/one", 1)
    lance.write_dataset(ROWS, branch, mode="append")
    lance.write_dataset(ROWS, uri, mode="append")
    files_of_job = ("heartbeat", "stop", "reports/0/2f-0.json", "limits/1f2e3d", "limits/grants")
    of_job = [f"jobs/{new_id()}/{name}" for name in files_of_job]
    for name in (f"staging/{new_id()}/open", *of_job, "udfs/" + "ab" * 32):
        path = Path(uri, "_lance_spark", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ours")
    lance.write_dataset(ROWS, f"{uri}/_lance_spark/jobs.lance")
    return lance.dataset(uri)


def make_by_rows(db: lance_spark.Connection, name: str) -> None:
    db.create_table(name, ROWS)


def make_by_view(db: lance_spark.Connection, name: str) -> None:
    source = db.create_table(f"source_of_{name}", ROWS)
    db.create_materialized_view(name, source.search(None).select(["id"]))


def make_by_plan(db: lance_spark.Connection, name: str) -> None:
    for overwrite in (True, False):
        ref = DatasetRef.at(f"{db.uri}/{name}.lance")
        LanceAppendWriter.plan(
            ref, StructType().add("id", "long"), WriteOptions.parse({}), overwrite=overwrite
        )


@pytest.mark.parametrize("make", [make_by_rows, make_by_view, make_by_plan])
@pytest.mark.parametrize("name", [*FOREIGN, "link", "data", "_versions", "_lance_spark"])
def test_no_table_is_made_in_a_folder_that_holds_anything_else(
    make: Any, name: str, db: lance_spark.Connection, tmp_path: Path
):
    foreign = tmp_path / "tables/t.lance" / name
    foreign.parent.mkdir(parents=True)
    if name in FOREIGN:
        foreign.write_text("of others")
    else:
        (tmp_path / "victim").mkdir()
        foreign.symlink_to(tmp_path / "victim")
    before = picture(tmp_path)
    with pytest.raises(UnsupportedOperationError, match=r"belong to no Lance table.*t\.lance"):
        make(db, "t")
    after = {
        path: content for path, content in picture(tmp_path).items() if "source_of_t" not in path
    }
    assert after == before


def test_a_table_is_made_where_a_killed_write_left_names_of_ours_and_in_a_declared_folder(
    db: lance_spark.Connection, tmp_path: Path
):
    folder = tmp_path / "tables/t.lance"
    job, attempt = new_id(), new_id()
    leftovers = [
        f"_lance_spark/staging/{job}/open",
        f"_lance_spark/staging/{job}/{attempt}/attempt",
    ]
    leftovers += [
        f"data/{attempt}-0.lance",
        f"data/{attempt}-1/0.blob",
        ".lance-reserved",
        f"data/{attempt}-2.lance#1",
    ]
    for name in leftovers:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert db.create_table("t", ROWS).count_rows() == 300
    assert set(leftovers) <= picture(folder).keys()


@pytest.mark.parametrize("scheme", ["", "file-object-store://"])
def test_a_drop_deletes_the_table_and_nothing_of_others(scheme: str, tmp_path: Path):
    uri = tmp_path / "tables/t.lance"
    full_table(str(uri))
    own_entries = picture(tmp_path)
    if scheme:
        # The object store shows no links: the test plants only foreign files.
        for name in FOREIGN:
            (uri / name).parent.mkdir(parents=True, exist_ok=True)
            (uri / name).write_text("of others")
    else:
        plant(uri, tmp_path / "victim")
    foreign_entries = {
        path: content for path, content in picture(tmp_path).items() if path not in own_entries
    }
    assert len(foreign_entries) >= len(FOREIGN)
    lance_spark.connect(f"{scheme}{tmp_path}/tables").drop_table("t")
    assert picture(tmp_path) == foreign_entries


def test_a_drop_of_a_table_alone_takes_its_folder(db: lance_spark.Connection, tmp_path: Path):
    full_table(f"{db.uri}/t.lance")
    db.drop_table("t")
    assert list((tmp_path / "tables").iterdir()) == []
    with pytest.raises(TableNotFoundError):
        db.drop_table("t")
    db.drop_table("t", ignore_missing=True)


def test_a_table_behind_a_link_is_not_dropped(db: lance_spark.Connection, tmp_path: Path):
    full_table(str(tmp_path / "elsewhere.lance"))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/t.lance").symlink_to(tmp_path / "elsewhere.lance")
    before = picture(tmp_path)
    with pytest.raises(UnsupportedOperationError, match="is a link"):
        db.drop_table("t")
    assert picture(tmp_path) == before


@pytest.mark.parametrize("planted", ["notes.txt", "data/customers.csv", "data/linked", "", ".."])
def test_a_branch_among_files_of_others_or_behind_a_link_is_not_deleted(
    planted: str, db: lance_spark.Connection, tmp_path: Path
):
    table = db.create_table("t", ROWS)
    table.branches.create("dev/one").add(ROWS)
    folder, place = Path(table.uri, "tree/dev/one"), Path(table.uri, "tree/dev/one", planted)
    if planted in ("", ".."):
        place = folder if planted == "" else folder.parent
        place.rename(tmp_path / "moved")
        (tmp_path / "moved/notes.txt").write_text("of others")
        place.symlink_to(tmp_path / "moved")
    elif planted == "data/linked":
        plant(tmp_path / "victim", tmp_path / "other")
        place.symlink_to(tmp_path / "victim")
    else:
        place.write_text("of others")
    before = picture(tmp_path)
    with pytest.raises(
        UnsupportedOperationError,
        match=r"Nothing was deleted\. (Move the files away|Remove the link)",
    ):
        table.branches.delete("dev/one")
    assert picture(tmp_path) == before and list(table.branches.list()) == ["dev/one"]
    place.unlink()
    if planted not in ("", ".."):
        table.branches.delete("dev/one")
        assert not folder.exists() and table.count_rows() == 300


def test_leftovers_of_a_killed_drop_are_searched_only_in_the_folders_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The location may be the root of a file system, and listing the root takes hours."""
    Path(tmp_path, "others", "deep").mkdir(parents=True)
    Path(tmp_path, "others", "deep", "x.txt").touch()
    Path(tmp_path, "data").mkdir()
    listed = []
    monkeypatch.setattr(
        LanceObjects, "list_files", lambda _, prefix="": listed.append(prefix) or []
    )
    assert not has_leftovers(DatasetRef.at(str(tmp_path)))
    assert listed == ["data"]


def test_a_drop_leaves_a_folder_alone_that_never_was_a_tables(
    db: lance_spark.Connection, tmp_path: Path
):
    folder = tmp_path / "tables/t.lance"
    for name in ("data/model.lance", "README.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("of others")
    before = picture(tmp_path)
    with pytest.raises(TableNotFoundError):
        db.drop_table("t")
    assert picture(tmp_path) == before


def killed_after(deletions: int, ref: DatasetRef) -> bool:
    """Drops a table in a process that is killed after a number of deletions; tells whether the drop ended before."""
    pid = os.fork()
    if pid == 0:
        unlink, count = os.unlink, [deletions]

        def unlink_or_die(*arguments: Any, **options: Any) -> None:
            if not count[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] -= 1
            unlink(*arguments, **options)

        os.unlink = unlink_or_die
        try:
            delete_table_folder(ref)
            os._exit(0)
        finally:
            os._exit(1)  # never the rest of the tests
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_drop_that_is_killed_leaves_the_whole_table_or_none_and_the_next_drop_or_write_goes_on(
    tmp_path: Path,
):
    original = tmp_path / "tables/original.lance"
    dataset = full_table(str(original))
    rows, version = dataset.to_table(), dataset.version
    branch_rows = dataset.checkout_version(("dev/one", None)).count_rows()
    endings = set()
    for deletions in range(len(picture(original)) + 1):
        db = lance_spark.connect(str(tmp_path / f"tables/{deletions}"))
        ref = DatasetRef.at(f"{db.uri}/t.lance")
        _copy(original, Path(ref.uri))
        ended = killed_after(deletions, ref)
        exists = table_exists(ref.uri, {})
        endings.add(exists)
        if exists:
            remaining_table = lance.dataset(ref.uri)
            assert remaining_table.version == version and remaining_table.to_table() == rows
        at_branch = f"{ref.uri}/tree/dev/one"
        if table_exists(at_branch, {}):
            assert (
                lance.dataset(at_branch).count_rows()
                == branch_rows
                == len(lance.dataset(at_branch).to_table())
            )
        if not exists and not ended and deletions % 2:
            assert db.create_table("t", ROWS).to_arrow() == ROWS
        db.drop_table("t", ignore_missing=ended)
        assert not os.path.exists(ref.uri), picture(Path(ref.uri)).keys()
    assert endings == {True, False}


def _copy(source: Path, target: Path) -> None:
    for name, content in picture(source).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(bytes(content))  # type: ignore[call-overload]
