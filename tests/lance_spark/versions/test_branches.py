"""Branches of a table: created, listed, read, written and deleted, compared with pylance on the same branch."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lance_spark
from lance_spark import (
    Connection,
    OptionError,
    Table,
    TableNotFoundError,
    UnsupportedOperationError,
    VersionNotFoundError,
)
from lance_spark.table.connections.connection import open_table
from tests.lance_spark.table.call_log import CallLog
from tests.lance_spark.table.conftest import make_table

pytestmark = pytest.mark.sample(1, tests=2)


def ids(table: Table) -> list[int]:
    sorted_ids: list[int] = sorted(table.to_arrow(["id"])["id"].to_pylist())
    return sorted_ids


def by_lance(table: Table, branch: str | None) -> list[dict[str, Any]]:
    """The rows of a branch, as read by pylance, by `id`."""
    main = lance.dataset(table.branches.checkout("main").uri)
    rows: list[dict[str, Any]] = (
        main.checkout_version((branch, None)).to_table().sort_by("id").to_pylist()
    )
    return rows


def files_below(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def test_a_branch_begins_with_a_version_and_goes_on_by_itself(db: Connection, table: Table):
    table.tags.create("two", 2)
    work = table.branches.create("work")
    old = table.branches.create("old", "two")
    number = table.branches.create("number", 1)
    assert (work.count_rows(), old.count_rows(), number.count_rows()) == (30, 20, 10)
    work.add([{"id": 100, "text": "x"}])
    again = table.branches.create("again", "work", from_version=work.version - 1)
    branch_table = table.branches.create("there", f"work:{work.version}")
    latest = table.branches.create("latest", "work")
    assert (
        work.count_rows(),
        again.count_rows(),
        branch_table.count_rows(),
        latest.count_rows(),
    ) == (31, 30, 31, 31)
    assert (
        table.count_rows() == 30
        and table.current_branch() is None
        and work.current_branch() == "work"
    )
    listed = table.branches.list()
    assert (
        list(listed)
        == ["again", "latest", "number", "old", "there", "work"]
        == list(work.branches.list())
    )
    assert (listed["work"].parent, listed["work"].parent_version) == ("main", 3)
    assert (listed["there"].parent, listed["there"].parent_version) == ("work", work.version)
    for opened in (db.open_table("words", branch="work"), open_table(table.uri, branch="work")):
        assert ids(opened) == ids(work) and opened.uri == work.uri
    assert db.open_table("words", branch="work", version=work.version - 1).count_rows() == 30
    assert open_table(work.uri).current_branch() == "work"
    assert work.branches.checkout("main").uri == table.uri


BAD = (
    "",
    "a b",
    "a:b",
    "..",
    ".",
    "a..b",
    "a//b",
    "/a",
    "a/",
    "main",
    "7",
    "x.lock",
    "work/_versions",
    "work/data",
)


@pytest.mark.parametrize(
    "name", [*BAD, "work", "tagged", "work/inside", "above", "_lance_spark", None]
)
def test_a_name_that_is_not_valid_taken_or_in_the_way_of_another_is_refused(
    table: Table, name: str
):
    table.tags.create("tagged", 1)
    table.branches.create("work").add([{"id": 100, "text": "x"}])
    table.branches.create("above/below")
    before = files_below(table.uri)
    with pytest.raises(OptionError, match="Option 'name'"):
        table.branches.create(name)
    assert files_below(table.uri) == before and table.branches.checkout("work").count_rows() == 31


def test_missing_branches_are_an_error_that_lists_the_existing_ones(db: Connection, table: Table):
    table.branches.create("work")
    for call in (
        lambda: db.open_table("words", branch="wrok"),
        lambda: table.branches.checkout("wrok"),
        lambda: table.branches.delete("wrok"),
        lambda: table.branches.create("new", "wrok", from_version=1),
    ):
        with pytest.raises(
            VersionNotFoundError, match=r"Branch wrok does not exist.* Its branches are work"
        ):
            call()
    for version in ("wrok:1", "work:9", "wrok"):
        with pytest.raises(VersionNotFoundError, match=f"Version {version} does not exist"):
            table.checkout(version)
    with pytest.raises(VersionNotFoundError):
        table.branches.create("new", "work", from_version=9)
    with pytest.raises(OptionError, match="from_ref"):
        table.branches.create("new", 1, from_version=1)
    with pytest.raises(OptionError, match="drop_table"):
        table.branches.delete("main")
    assert list(table.branches.list()) == ["work"]


def test_what_lance_cannot_do_with_branches_is_refused_with_what_serves(table: Table):
    table.branches.create("work")
    for change, instead in (
        (lambda: table.branches.rename("work", "play"), r"create\('play', 'work'\)"),
        (
            lambda: table.branches.move("work", 1),
            r"checkout\('work'\)\.restore\(1\).*delete the branch and create it",
        ),
        (lambda: table.branches.cherry_pick("work"), "merge_insert"),
        (lambda: table.branches.diff("work"), "exceptAll"),
    ):
        with pytest.raises(UnsupportedOperationError, match=instead):
            change()


@pytest.mark.sample(1)
def test_a_branch_is_deleted_with_its_files_unless_something_needs_it(table: Table):
    before = files_below(table.uri)
    work = table.branches.create("work")
    work.add([{"id": 100, "text": "x"}])
    work.tags.create("kept", work.version)
    with pytest.raises(UnsupportedOperationError, match=r"the tags kept\. Nothing was deleted"):
        table.branches.delete("work")
    work.tags.delete("kept")
    table.branches.create("child", "work")
    with pytest.raises(
        UnsupportedOperationError,
        match=r"branches with versions of it as their start .*child.* Nothing was deleted",
    ):
        table.branches.delete("work")
    assert ids(table.branches.checkout("child")) == ids(work)
    table.branches.delete("child")
    work.to_lance().create_branch("work/inside", (None, 1))
    with pytest.raises(UnsupportedOperationError, match="branches below its name: work/inside"):
        table.branches.delete("work")
    table.branches.delete("work/inside")
    table.branches.delete("work")
    assert files_below(table.uri) == before and table.branches.list() == {}
    with pytest.raises(TableNotFoundError, match="The branch 'work' was deleted"):
        work.count_rows()
    assert table.branches.create("work", 1).count_rows() == 10


def test_leftovers_of_a_branch_are_not_a_branch(table: Table):
    work = table.branches.create("work")
    (
        Path(table.uri) / "_refs" / "branches" / "work.json"
    ).unlink()  # the state after a death during the creation
    assert table.branches.list() == {} and work.to_lance().count_rows() == 30
    with pytest.raises(VersionNotFoundError, match="Branch work does not exist"):
        table.branches.checkout("work")
    with pytest.raises(OptionError, match=r"delete .*/tree/work, what is left of an unfinished"):
        table.branches.create("work")
    shutil.rmtree(work.uri)
    assert table.branches.create("work").count_rows() == 30


@pytest.mark.sample(1)
def test_nothing_is_written_to_a_branch_that_was_deleted(table: Table):
    work = table.branches.create("work")
    table.branches.delete("work")
    for change in (
        lambda: work.add([{"id": 1, "text": "x"}]),
        lambda: work.add([{"id": 1, "text": "x"}], mode="overwrite"),
        lambda: work.delete("id = 1"),
        lambda: work.add_columns({"c": "id + 1"}),
    ):
        with pytest.raises(TableNotFoundError):
            change()
    assert not (Path(table.uri) / "tree" / "work").exists()


def test_a_table_with_branches_is_not_renamed(db: Connection, table: Table):
    table.branches.create("work")
    with pytest.raises(
        UnsupportedOperationError, match=r"the branches work .* Nothing was renamed"
    ):
        db.rename_table("words", "other")
    table.branches.delete("work")
    db.rename_table("words", "other")
    assert db.open_table("other").count_rows() == 30


CHANGES: dict[str, Callable[[Table, int], object]] = {
    "add": lambda table, k: table.add([{"id": 1000 + k, "text": "new"}]),
    "update": lambda table, k: table.update(
        f"id % 7 = {k % 7}", values_sql={"text": f"concat(text, '{k}')"}
    ),
    "delete": lambda table, k: table.delete(f"id % 11 = {k % 11}"),
    "merge": lambda table, k: (
        table.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(pa.table({"id": [k, 2000 + k], "text": ["merged", "inserted"]}))
    ),
    "compact": lambda table, k: table.compact_files(target_rows_per_fragment=1000),
    "index": lambda table, k: table.create_scalar_index("id", replace=True),
    "column": lambda table, k: table.add_columns({f"c{len(table.to_lance().schema)}": "id + 1"}),
    "restore": lambda table, k: table.restore(3 + k % 2),
    "overwrite": lambda table, k: table.add(
        [{"id": i, "text": f"o{i}"} for i in range(5)], mode="overwrite"
    ),
}
BY_LANCE: dict[str, Callable[[lance.LanceDataset, int], object]] = {
    "add": lambda ds, k: lance.write_dataset(
        pa.table({"id": [1000 + k], "text": ["new"]}), ds, mode="append"
    ),
    "update": lambda ds, k: ds.update({"text": f"concat(text, '{k}')"}, where=f"id % 7 = {k % 7}"),
    "delete": lambda ds, k: ds.delete(f"id % 11 = {k % 11}"),
    "merge": lambda ds, k: (
        ds.merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(pa.table({"id": [k, 2000 + k], "text": ["merged", "inserted"]}))
    ),
    "compact": lambda ds, k: ds.optimize.compact_files(target_rows_per_fragment=1000),
    "index": lambda ds, k: ds.create_scalar_index("id", "BTREE", replace=True),
    "column": lambda ds, k: ds.add_columns({f"c{len(ds.schema)}": "id + 1"}),
    "restore": lambda ds, k: ds.checkout_version(3 + k % 2).restore(),
    "overwrite": lambda ds, k: lance.write_dataset(
        pa.table({"id": range(5), "text": [f"o{i}" for i in range(5)]}), ds, mode="overwrite"
    ),
}
"""The same by plain pylance, on a second table."""


@pytest.mark.parametrize(
    "steps", [[(name, k) for k, name in enumerate(BY_LANCE) if name != "merge"]]
)
def test_changes_of_a_branch_give_what_pylance_gives_and_leave_others_alone(
    db: Connection, steps: list[tuple[str, int]]
):
    check_like_pylance(db, steps)


@pytest.mark.spark
@pytest.mark.long
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(BY_LANCE)), st.integers(0, 30)), min_size=1, max_size=8
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_changes_of_a_branch_give_what_pylance_gives(
    db: Connection, steps: list[tuple[str, int]]
):
    check_like_pylance(db, steps)


def check_like_pylance(db: Connection, steps: list[tuple[str, int]]) -> None:
    for name in ("ours", "theirs"):
        db.drop_table(name, ignore_missing=True)
    our_table, lance_table = make_table(db, "ours"), make_table(db, "theirs")
    before = by_lance(our_table, None)
    branch = our_table.branches.create("b/work")
    branch_table = our_table.branches.create("other")
    lance_table.to_lance().create_branch("b/work")
    for step, k in [("add", 0), *steps]:
        CHANGES[step](branch, k)
        BY_LANCE[step](lance.dataset(lance_table.uri).checkout_version(("b/work", None)), k)
        assert by_lance(branch, "b/work") == by_lance(lance_table, "b/work")
        assert branch.to_arrow().sort_by("id").to_pylist() == by_lance(branch, "b/work")
    assert (
        by_lance(our_table, None) == before == by_lance(our_table, "other")
        and our_table.version == 3 == branch_table.version
    )


@pytest.mark.parametrize("upkeep_of", ["main", "parent", "child"])
def test_upkeep_of_one_branch_leaves_the_rows_of_the_others(
    db: Connection, table: Table, upkeep_of: str
):
    table.delete("id = 3")
    parent = table.branches.create("parent")
    parent.add([{"id": 100, "text": "x"}])
    parent.delete("id = 4")
    child = table.branches.create("child", "parent")
    child.add([{"id": 200, "text": "y"}])
    tables = {"main": table, "parent": parent, "child": child}
    before = {
        name: by_lance(branch_table, None if name == "main" else name)
        for name, branch_table in tables.items()
    }
    maintained = tables[upkeep_of]
    maintained.compact_files(target_rows_per_fragment=1000)
    maintained.cleanup_old_versions(timedelta(0), delete_unverified=True)
    lance_spark.cleanup(maintained.uri, older_than=timedelta(0))
    assert {
        name: by_lance(branch_table, None if name == "main" else name)
        for name, branch_table in tables.items()
    } == before
    maintained.add([{"id": 0, "text": "only this"}], mode="overwrite")
    maintained.cleanup_old_versions(timedelta(0), delete_unverified=True)
    lance_spark.cleanup(maintained.uri, older_than=timedelta(0))
    del before[upkeep_of]
    assert {
        name: by_lance(tables[name], None if name == "main" else name) for name in before
    } == before


def test_two_writers_of_a_branch_both_get_their_rows_in(db: Connection, table: Table):
    table.branches.create("work")
    writers = [db.open_table("words", branch="work") for _ in range(2)]

    def write(writer: Table, number: int) -> None:
        for k in range(5):
            writer.add([{"id": 1000 * (number + 1) + k, "text": "x"}])
            writer.update(f"id = {number * 10 + k}", values={"text": "changed"})

    threads = [
        threading.Thread(target=write, args=(writer, number))
        for number, writer in enumerate(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work = db.open_table("words", branch="work")
    assert ids(work) == [*range(30), *range(1000, 1005), *range(2000, 2005)]
    assert (
        work.count_rows("text = 'changed'") == 10 and work.version == 3 + 20 and table.version == 3
    )


def test_a_computed_column_of_a_branch_is_filled_there_alone(
    db: Connection, table: Table, call_log: CallLog
):
    table.add_columns({"both": call_log.times(2)})
    table.backfill("both", where="id < 5")
    work = table.branches.create("work")
    work.add_columns({"mine": call_log.times(3)})
    assert work.backfill("both").rows_computed == 25 and work.backfill("mine").rows_computed == 30
    assert work.to_arrow(["both", "mine"]).to_pydict() == {
        "both": [2 * i for i in range(30)],
        "mine": [3 * i for i in range(30)],
    }
    assert table.count_rows("both IS NULL") == 25 and "mine" not in table.to_lance().schema.names
    assert len(work.list_jobs()) == 2 and len(table.list_jobs()) == 1  # a history of its own
    assert table.backfill("both").rows_computed == 25  # nothing of the branch is taken for main's
    work.to_lance().update({"id": "id + 100"}, where="id < 3")
    assert work.backfill("both", stale=True).rows_computed == 3
    assert work.to_arrow(filter="id >= 100")["both"].to_pylist() == [200, 202, 204]


@pytest.mark.long
@pytest.mark.spark
def test_indexes_searches_loads_views_and_blobs_work_on_a_branch(
    db: Connection, table: Table, call_log: CallLog
):
    table.create_scalar_index("id")
    table.create_fts_index("text")
    work = table.branches.create("work")
    work.add([{"id": 100, "text": "unheard"}])
    work.optimize_indices()
    assert (
        work.index_stats("id_idx").num_unindexed_rows == 0
        and table.index_stats("id_idx").num_indexed_rows == 30
    )
    assert (
        work.search("unheard").to_arrow()["id"].to_pylist() == [100]
        and table.search("unheard").to_list() == []
    )
    assert work.search("unheard").to_spark().count() == 1
    work.load_columns(pa.table({"id": [1, 100], "loaded": [10, 1000]}), "id", ["loaded"])
    assert work.to_spark(["loaded"], "loaded IS NOT NULL").count() == 2
    view = db.create_materialized_view(
        "view", work.search(None).select(["id", "loaded"]).where("id > 20")
    )
    view.refresh()
    assert (view.count_rows(), max(ids(view))) == (10, 100)
    work.add([{"id": 200, "text": "later"}])
    table.add([{"id": 300, "text": "elsewhere"}])
    view.refresh()
    assert (view.count_rows(), max(ids(view))) == (11, 200)
    work.delete("id = 200")
    branch_view = view.branches.create("shown")
    branch_view.refresh()
    assert (branch_view.count_rows(), max(ids(branch_view)), view.count_rows()) == (10, 100, 11)
    work.add_columns({"three": call_log.times(3)})
    work.backfill("three", protect_snapshot=True, where="id >= 0")
    assert work.count_rows("three = 3 * id") == 31 and work.tags.list() == {}
    assert (
        work.maintain().compaction.fragments_removed > 0 and work.count_rows("three = 3 * id") == 31
    )


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs_of_the_table_are_read_on_a_branch(db: Connection, version: str):
    blobs = [b"x" * size for size in (10, 100_000, 300_000)]
    metadata = {"lance-encoding:blob": "true"}
    if version == "2.1":
        schema = pa.schema(
            [pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata=metadata)]
        )
        data = pa.table([[0, 1, 2], blobs], schema=schema)
    else:
        data = pa.table({"id": [0, 1, 2], "b": lance.blob_array(blobs)})
    table = db.create_table("blobs", data, data_storage_version=version)
    work = table.branches.create("work")
    work.add([{"id": 3, "b": b"y" * 200_000}])
    work.delete("id = 1")
    for _ in range(2):
        read = work.to_arrow(blob_handling="bytes").sort_by("id").to_pydict()
        assert read == {"id": [0, 2, 3], "b": [blobs[0], blobs[2], b"y" * 200_000]}
        work.compact_files(target_rows_per_fragment=100)
        work.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert table.to_arrow(blob_handling="bytes")["b"].to_pylist() == blobs


def test_tags_are_of_a_branch_and_their_names_of_the_table(table: Table):
    work = table.branches.create("work")
    work.add([{"id": 100, "text": "x"}])
    work.tags.create("done", work.version)
    table.tags.create("there", "work:3")
    table.tags.create("here", 1)
    assert work.tags.list() == {"done": 4, "there": 3} and table.tags.list() == {"here": 1}
    with pytest.raises(OptionError, match="not taken"):
        table.tags.create("done", 1)
    with pytest.raises(OptionError, match="no branch has"):
        table.tags.create("work", 1)
    with pytest.raises(VersionNotFoundError):
        table.tags.delete("done")
    table.checkout("done")
    assert table.count_rows() == 31 and table.version == 4
    table.checkout_latest()
    work.tags.update("done", 3)
    assert work.tags.get_version("done") == 3


def test_a_version_of_another_branch_is_shown_and_not_restored(table: Table):
    work = table.branches.create("work")
    work.add([{"id": 100, "text": "x"}])
    table.add([{"id": 200, "text": "y"}])
    for version, expected_id in (("work:4", 100), ("work", 100), ("main:4", 200)):
        table.checkout(version)
        assert expected_id in ids(table) and table.count_rows() == 31
    work.checkout("main:4")
    with pytest.raises(UnsupportedOperationError, match=r"of another branch.*Nothing was changed"):
        work.restore()
    work.checkout_latest()
    table.tags.create("mains", 4)
    for version in ("mains", "main:4"):
        with pytest.raises(UnsupportedOperationError, match="of another branch"):
            work.restore(version)
    work.restore(3)
    assert (
        work.version == 5
        and work.count_rows() == 30
        and work.versions[-1].operation == "restore of version 3"
    )
    assert [version_info.operation for version_info in work.versions][:2] == ["clone", "append"]


def test_a_reference_means_the_branch(table: Table):
    work = table.branches.create("work")
    work.add([{"id": 100, "text": "x"}])
    opened = work.get_reference().open()
    assert (
        opened.uri == work.uri and opened.current_branch() == "work" and opened.count_rows() == 31
    )
    work.checkout(3)
    assert work.get_reference().open().count_rows() == 30
    table.checkout("work:4")
    reference = table.get_reference()
    assert (reference.branch, reference.version, reference.open().count_rows()) == (
        None,
        "work:4",
        31,
    )


def test_checkpoints_in_a_shared_folder_are_the_branchs_own(
    folder: str, jobs: Any, tmp_path: Path, call_log: CallLog
):
    db = lance_spark.connect(folder, jobs, progress=False, checkpoint=str(tmp_path / "checkpoints"))
    table = make_table(db)
    work = table.branches.create("work")
    places = [
        handle.get_reference().checkpoint
        for handle in (table, work, db.open_table("words", branch="work"))
    ]
    assert places[0] != places[1] == places[2]
    assert work.get_reference().open().get_reference().checkpoint == places[1]
