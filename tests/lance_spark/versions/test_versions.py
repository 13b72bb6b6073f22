"""Versions of a table: older versions are shown and restored, tagged, and compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import (
    ColumnNotFoundError,
    Connection,
    OptionError,
    StableRowIdsError,
    Table,
    TableUnwritableError,
    UnsupportedOperationError,
    VersionNotFoundError,
)
from lance_spark.commit.attempt import this_user
from lance_spark.versions.tags import Tags
from lance_spark.versions.versions import TableVersion
from tests.lance_spark.table.call_log import CallLog
from tests.lance_spark.table.conftest import make_table

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=3)]


def ids(table: Table) -> list[int]:
    sorted_ids: list[int] = sorted(table.to_arrow(["id"])["id"].to_pylist())
    return sorted_ids


@pytest.mark.guarantee("U04")
def test_an_older_version_is_shown_and_cannot_be_changed(
    db: Connection, table: Table, call_log: CallLog
):
    version = table.version
    old_handle = db.open_table("words")
    old_handle.add([{"id": 100, "text": "late"}])
    table.checkout(version)
    old_handle.to_lance().delete("id < 5")
    assert table.version == version and table.count_rows() == 30 and 100 not in ids(table)
    assert table.head(1)["id"].to_pylist() == [0] and table.to_pandas(["id"])["id"].min() == 0
    assert f"version {version}, 30 rows" in repr(table)
    for change in (
        lambda: table.add([{"id": 101, "text": "x"}]),
        lambda: table.add_columns({"a": "id + 1"}),
        lambda: table.add_columns({"a": call_log.times(2)}),
        lambda: table.alter_columns({"path": "text", "name": "words"}),
        lambda: table.drop_columns("text"),
        lambda: table.backfill("text", udf=call_log.times(2)),
        lambda: table.plan_backfill("text", udf=call_log.times(2)),
        lambda: table.load_columns(pa.table({"id": [1], "a": [2]}), "id", ["a"]),
        table.refresh,
        lambda: table.search(None).create_materialized_view(db, "v"),
    ):
        with pytest.raises(
            UnsupportedOperationError,
            match=rf"(?i)version {version} (of .*)?is checked out.*checkout_latest\(\)",
        ):
            change()
    assert table.list_jobs() == []
    table.checkout_latest()
    assert table.count_rows() == 26 and ids(table) == ids(old_handle)
    table.add([{"id": 101, "text": "x"}])
    assert 101 in ids(old_handle)


def test_spark_reads_the_version_that_is_checked_out(folder: str, spark: SparkSession):
    table = make_table(lance_spark.connect(folder, spark, progress=False))
    version = table.version
    table.add([{"id": 100, "text": "late"}])
    table.checkout(version)
    frame = table.to_spark()
    table.checkout_latest()
    assert (frame.count(), table.to_spark().count(), table.to_spark(version=version).count()) == (
        30,
        31,
        30,
    )


@pytest.mark.guarantee("U05")
@pytest.mark.parametrize("by", ["number", "tag", "checkout"])
def test_a_version_is_restored_as_a_new_one(
    db: Connection, table: Table, call_log: CallLog, by: str
):
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double")
    version = table.version
    table.tags.create("good", version)
    table.to_lance().delete("id >= 10")
    broken = table.version
    if by == "checkout":
        table.checkout(version)
        table.restore()
    else:
        table.restore(version if by == "number" else "good")
    assert table.version == broken + 1 and table.count_rows("double = id * 2") == 30
    assert db.open_table("words").count_rows() == 30
    table.checkout(broken)
    assert table.count_rows() == 10
    table.checkout_latest()
    assert table.backfill("double").rows_computed == 0
    transaction = table.read_transaction(table.version)
    assert transaction is not None and type(transaction.operation).__name__ == "Restore"


def test_invalid_versions_are_refused(table: Table):
    for wrong in (99, "no-tag"):
        with pytest.raises(VersionNotFoundError, match=str(wrong)):
            table.checkout(wrong)
        with pytest.raises(VersionNotFoundError, match=str(wrong)):
            table.restore(wrong)
        with pytest.raises(VersionNotFoundError, match=str(wrong)):
            table.diff(1, wrong)
        with pytest.raises(VersionNotFoundError, match=str(wrong)):
            table.tags.create("t", wrong)
    for mistyped in (True, 1.5, None):
        with pytest.raises(OptionError, match="a tag, `branch:number`"):
            table.checkout(mistyped)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="none where one is checked out"):
        table.restore()
    assert table.version == 3


@pytest.mark.guarantee("U06")
def test_tags_name_versions(db: Connection, table: Table, spark: SparkSession):
    tags = table.tags
    assert tags.list() == {}
    tags.create("first", 1)
    tags.create("also-first", "first")
    tags.create("last", 3)
    assert (
        tags.list() == {"also-first": 1, "first": 1, "last": 3}
        and repr(tags) == f"Tags({tags.list()})"
    )
    tags.update("also-first", 2)
    assert (
        tags.get_version("also-first") == 2 == db.open_table("words").tags.get_version("also-first")
    )
    assert spark.read.format("lance").option("version", "also-first").load(table.uri).count() == 20
    tags.delete("first")
    for call in (tags.get_version, tags.delete, lambda tag: tags.update(tag, 1)):
        with pytest.raises(VersionNotFoundError, match="Its tags are also-first, last"):
            call("first")
    for name in ("last", "12", "", "a b/c"):
        with pytest.raises(OptionError, match="tag"):
            tags.create(name, 1)
    assert tags.list() == {"also-first": 2, "last": 3}


def take_tag_away(table: Table) -> None:
    table.to_lance().tags.delete("t")


def take_store_away(table: Table) -> None:
    shutil.rmtree(Path(table.uri, "_refs"))
    Path(table.uri, "_refs").touch()


@pytest.mark.parametrize(
    "change", [lambda tags: tags.update("t", 2), lambda tags: tags.delete("t")]
)
@pytest.mark.parametrize(
    ("happens", "error"),
    [(take_tag_away, VersionNotFoundError), (take_store_away, TableUnwritableError)],
)
def test_what_happens_to_a_tag_while_it_is_changed_is_an_error_of_ours(
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Tags], None],
    happens: Callable[[Table], None],
    error: type[Exception],
):
    table.tags.create("t", 1)
    real = Tags.get_version

    def get_version(tags: Tags, tag: str) -> int:
        tagged_version = real(tags, tag)
        happens(table)
        return tagged_version

    monkeypatch.setattr(Tags, "get_version", get_version)
    with pytest.raises(error, match=table.uri):
        change(table.tags)
    if happens is take_store_away:
        with pytest.raises(error, match=table.uri):
            table.tags.create("s", 1)


STEPS = st.lists(
    st.sampled_from(
        [
            "append",
            "update",
            "delete",
            "compact",
            "restore",
            "overwrite one",
            "in place",
            "unseen",
            "add",
            "widen",
        ]
    ),
    min_size=1,
    max_size=5,
)


def update_unseen(table: Table, text: str, id: int) -> None:
    """Changes one value in place, like `update_columns`: Lance updates no row version."""
    dataset = table.to_lance()
    for fragment in dataset.get_fragments():
        rows = fragment.to_table(["id"], filter=f"id = {id}", with_row_id=True)
        if rows.num_rows:
            new = pa.table({"_rowid": rows["_rowid"], "text": [text]})
            changed, fields = fragment.update_columns(new, left_on="_rowid", right_on="_rowid")
            operation = lance.LanceOperation.Update(
                updated_fragments=[changed], fields_modified=fields
            )
            lance.LanceDataset.commit(table.uri, operation, read_version=dataset.version)
            return


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.data())
def test_two_versions_differ_in_the_rows_that_came_went_and_changed(
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
    steps: list[str],
    data: st.DataObject,
):
    db = lance_spark.connect(str(tmp_path_factory.mktemp("diff")), spark, progress=False)
    table = make_table(db, fragments=2, rows=5)
    table.to_lance().add_columns({"other": "id * 2"})
    fresh = 1000
    for step in steps:
        dataset = table.to_lance()
        some = data.draw(st.integers(0, 12))
        if step == "append":
            table.add([{"id": fresh, "text": "new"}, {"id": fresh + 1, "text": "new"}])
            fresh += 2
        elif step == "update":
            dataset.update({"text": f"'changed {fresh}'"}, where=f"id % 5 = {some % 5}")
            fresh += 2
        elif step == "delete":
            dataset.delete(f"id = {some}")
        elif step == "compact":
            dataset.optimize.compact_files()
        elif step == "restore":
            table.restore(data.draw(st.integers(1, table.version)))
        elif (
            step == "in place" and len(dataset.schema) > 2
        ):  # Lance rewrites some columns in place, and not all
            new = pa.table(
                {
                    "id": pa.array([some], dataset.schema.field("id").type),
                    "text": [f"in place {fresh}"],
                }
            )
            rewrite = (
                dataset.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns")
            )
            rewrite.execute(new)
            fresh += 2
        elif step == "unseen":
            update_unseen(table, f"unseen {fresh}", some)
            fresh += 2
        elif step == "add":
            dataset.add_columns({f"c{fresh}": "id * 2"})
            fresh += 2
        elif step == "widen":
            dataset.alter_columns(
                {"path": "id", "data_type": pa.int32() if fresh % 4 else pa.int64()}
            )
            fresh += 2
        else:
            dataset.update({"text": "'one'"}, where=f"id = {some}")
    last = table.version
    first, second = sorted([data.draw(st.integers(1, last)), data.draw(st.integers(1, last))])
    diff = table.diff(first, second)

    def rows(version: int) -> dict[int, tuple[int, str]]:
        all_rows = (
            table.to_lance()
            .checkout_version(version)
            .scanner(with_row_id=True)
            .to_table()
            .to_pylist()
        )
        return {row["_rowid"]: (row["id"], row["text"]) for row in all_rows}

    def call_log(frame: object) -> list[tuple[int, str]]:
        return sorted((row.id, row.text) for row in frame.collect())  # type: ignore[attr-defined]

    old, new = rows(first), rows(second)
    assert call_log(diff.inserted) == sorted(new[row] for row in new.keys() - old.keys())
    assert call_log(diff.deleted) == sorted(old[row] for row in old.keys() - new.keys())
    assert call_log(diff.updated) == sorted(
        new[row] for row in new.keys() & old.keys() if new[row] != old[row]
    )


def test_a_difference_compares_values_and_not_what_was_written(
    db: Connection, table: Table, call_log: CallLog
):
    table.add_columns({"doubled": call_log.times(2)})
    first = table.version
    table.backfill("doubled")
    filled = table.version
    update_unseen(table, "changed", 3)
    # An update rewrites all rows of a fragment with unchanged values.
    table.to_lance().update({"text": "text"}, where="id < 10")
    assert table.diff(first, filled).updated.count() == 0
    assert table.diff(filled).updated.select("id", "text", "doubled").collect() == [
        (3, "changed", 6)
    ]
    assert table.diff(filled, columns="id").updated.count() == 0
    assert table.diff(first, columns=["doubled"]).updated.count() == 30
    with pytest.raises(ColumnNotFoundError, match=rf"'doubled'.*version {first - 1}"):
        table.diff(first - 1, columns=["doubled"])
    with pytest.raises(OptionError, match="columns"):
        table.diff(first, columns=[])


def test_a_difference_reads_no_fragment_that_is_the_same_in_both_versions(table: Table):
    first = table.version
    update_unseen(table, "changed", 3)
    for fragment in table.to_lance().get_fragments()[1:]:
        for file in fragment.data_files():
            Path(table.uri, "data", file.path).unlink()
    diff = table.diff(first)
    assert [row.id for row in diff.updated.collect()] == [3]
    assert diff.inserted.count() == diff.deleted.count() == 0


def test_a_difference_that_cannot_be_read_is_an_error_and_never_fewer_or_more_rows(table: Table):
    first, file = table.version, table.to_lance().get_fragments()[0].data_files()[0]
    update_unseen(table, "changed", 3)
    Path(table.uri, "data", file.path).unlink()
    with pytest.raises(Exception, match="TableUnreadableError"):
        table.diff(first).updated.count()


def test_rows_without_stable_ids_cannot_be_compared(db: Connection):
    table = make_table(db, "unstable", enable_stable_row_ids=False)
    with pytest.raises(StableRowIdsError, match="enable_stable_row_ids=True"):
        table.diff(1)


def test_a_restore_comes_after_what_others_commit_in_that_moment(
    db: Connection, table: Table, tmp_path: Path
):
    second_handle = db.open_table("words")
    table.checkout(1)
    second_handle.add([{"id": 100, "text": "late"}])
    table.restore()
    assert table.version == 5 and table.count_rows() == 10
    assert second_handle.version == 5


@pytest.mark.guarantee("U07")
def test_versions_say_what_each_did_by_whom_and_with_which_message(
    db: Connection, spark: SparkSession, tmp_path: Path
):
    table = db.create_table("told", pa.table({"id": range(10)}))
    table.add([{"id": 10}, {"id": 11}], commit_message="two more", properties={"ticket": "42"})
    table.update("id = 3", {"id": 33}, commit_message="one row", properties={"ticket": "43"})
    table.delete("id < 3", commit_message="less")
    source = [{"id": 33}, {"id": 50}, {"id": 51}]
    merge = (
        table.merge_insert("id")
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete("target.id = 4")
    )
    merge.execute(source, commit_message="merged", properties={"ticket": "44"})
    options = {"commit_message": "by Spark", "snapshot-property.ticket": "45"}
    spark.range(60, 65).write.format("lance").mode("append").options(**options).save(table.uri)
    table.restore(2, commit_message="back", properties={"ticket": "46"})
    table.to_lance().delete("id = 9")
    table.to_lance().optimize.compact_files()

    all_versions = table.versions[:]
    assert [
        (version_info.version, version_info.operation, version_info.message)
        for version_info in all_versions
    ] == [
        (1, "create", None),
        (2, "append", "two more"),
        (3, "update", "one row"),
        (4, "delete", "less"),
        (5, "merge", "merged"),
        (6, "append", "by Spark"),
        (7, "restore of version 2", "back"),
        (8, "delete", None),
        (9, "internal", None),
        (10, "compaction", None),
    ]
    changed = [
        (version_info.rows_added, version_info.rows_removed) for version_info in all_versions
    ]
    assert changed == [
        (10, 0),
        (2, 0),
        (0, 0),
        (0, 3),
        (2, 1),
        (5, 0),
        (None, None),
        (None, None),
        (None, None),
        (0, 0),
    ]
    assert [version_info.rows for version_info in all_versions] == [
        10,
        12,
        12,
        9,
        10,
        15,
        12,
        11,
        11,
        11,
    ]
    assert [version_info.properties for version_info in all_versions[1:7]] == [
        {"ticket": "42"},
        {"ticket": "43"},
        {},
        {"ticket": "44"},
        {"ticket": "45"},
        {"ticket": "46"},
    ]
    assert (
        all(version_info.user == this_user() for version_info in all_versions[:7])
        and all_versions[7].user is None
    ), "another engine does not say it"
    assert all_versions[3].text == f"version 4: delete by {this_user()}, 3 rows removed, less"
    transaction = table.read_transaction(6)
    assert transaction is not None and transaction.transaction_properties["ticket"] == "45"


def test_only_the_versions_that_are_asked_for_are_read(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    for number in range(5):
        table.add([{"id": 100 + number, "text": "more"}])
    read: list[int] = []
    of = TableVersion.of
    monkeypatch.setattr(
        TableVersion, "of", lambda dataset: read.append(dataset.version) or of(dataset)
    )
    versions = table.versions
    assert len(versions) == table.version and not read
    assert (
        [version_info.version for version_info in versions[-2:]]
        == read
        == [table.version - 1, table.version]
    )


@pytest.mark.parametrize(
    "name", ["", "lance-spark.job", "__lance_commit_message"], ids=["empty", "ours", "lance"]
)
def test_properties_of_ours_cannot_be_given(table: Table, spark: SparkSession, name: str):
    before = table.version
    with pytest.raises(OptionError, match="cannot be given"):
        table.delete("true", properties={name: "x"})
    writer = (
        spark.range(1).write.format("lance").mode("append").option(f"snapshot-property.{name}", "x")
    )
    with pytest.raises(Exception, match="cannot be given"):
        writer.save(table.uri)
    assert table.version == before
