"""Compactions: their result without and with concurrent writers, whose commits they must never undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.optimize import Compaction

import lance_spark
from lance_spark import Connection, OptionError, UpkeepIncompleteError
from lance_spark.dataset import DatasetRef
from tests.lance_spark.upkeep.small_fragments import (
    FRAGMENTS,
    LOSES,
    ON_INDEXES,
    ROWS,
    TWO_IN_ONE,
    Act,
    append,
    assert_indexes_are_right,
    before_commit,
    build_index,
    configure,
    content,
    delete_rows,
    fragment_rows,
    make,
    rows,
    unnamed_files,
)
from tests.support.inline_jobs import NoSpark, acting, open_table
from udf_runtime import udf

pytestmark = pytest.mark.sample(3, tests=3)

LONG = pytest.mark.long
KINDS = ("BTREE", "BITMAP", "ZONEMAP")
"""Indexes whose rows with stable ids need another treatment, or none."""


def name_of(act: Act) -> str:
    return act.__name__


@pytest.mark.guarantee("U01")
def test_small_fragments_become_large_ones(db: Connection):
    table = make(db)
    table.to_lance().delete("id % 10 = 7")
    before = table.to_arrow()
    result = table.compact_files(target_rows_per_fragment=18)
    assert table.to_arrow() == before and fragment_rows(table.uri) == [18, 18, 18]
    assert (result.fragments_removed, result.fragments_added, result.rows) == (FRAGMENTS, 3, 54)
    assert (result.deletions_removed, result.retries, result.fragments_left) == (6, 0, 0)
    assert (result.files_removed, result.files_added, result.read_version) == (6, 3, 2)
    assert result.versions == (table.version,)
    assert repr(result).startswith(
        "<CompactionResult: 6 fragments became 3, with 54 rows, 6 deleted rows removed (1 commit, "
    )
    (job,) = table.list_jobs()
    assert (job.job_id, job.job_type, job.status, job.versions) == (
        result.job_id,
        "compact_files",
        "DONE",
        result.versions,
    )
    assert (job.fragments_total, job.fragments_done) == (6, 6)
    again = table.compact_files(target_rows_per_fragment=18)
    assert len(table.list_jobs()) == 1
    assert repr(again) == "<CompactionResult: nothing to compact>" and again.versions == ()
    assert unnamed_files(table.uri) == set()


def test_finished_groups_are_committed_while_others_run(db: Connection):
    table = make(db)
    result = table.compact_files(**TWO_IN_ONE, commit_granularity=1, concurrency=1)
    assert len(result.versions) == 3 and result.fragments_added == 3
    assert fragment_rows(table.uri) == [20, 20, 20]
    sizes = [
        len(table.to_lance().checkout_version(version).get_fragments())
        for version in range(1, table.version + 1)
    ]
    assert sorted(set(sizes), reverse=True) == [6, 5, 4, 3]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    deleted=st.sets(st.integers(0, 60), max_size=30),
    target=st.integers(1, 40),
    threshold=st.sampled_from([None, 0.0, 0.5]),
    materialize=st.sampled_from([None, True, False]),
    stable=st.booleans(),
    granularity=st.integers(1, 3),
)
def test_a_compaction_gives_the_table_of_pylance(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    deleted: set[int],
    target: int,
    threshold: float | None,
    materialize: bool | None,
    stable: bool,
    granularity: int,
):
    folder = tmp_path_factory.mktemp("same")
    first = 0
    for size in sizes:
        for name in ("ours", "theirs"):
            uri = str(folder / name)
            mode: Any = "append" if first else "create"
            lance.write_dataset(rows(first, size), uri, mode=mode, enable_stable_row_ids=stable)
        first += size
    options: dict[str, Any] = {
        "target_rows_per_fragment": target,
        "materialize_deletions": materialize,
        "materialize_deletions_threshold": threshold,
    }
    for name in ("ours", "theirs"):
        lance.dataset(folder / name).delete(f"id IN ({', '.join(map(str, [-1, *deleted]))})")
    metrics = lance.dataset(folder / "theirs").optimize.compact_files(**options)
    result = open_table(str(folder / "ours")).compact_files(
        **options, commit_granularity=granularity
    )
    our_copy, lance_copy = lance.dataset(folder / "ours"), lance.dataset(folder / "theirs")
    assert our_copy.to_table() == lance_copy.to_table()
    assert fragment_rows(str(folder / "ours")) == fragment_rows(str(folder / "theirs"))
    assert (result.fragments_removed, result.fragments_added) == (
        metrics.fragments_removed,
        metrics.fragments_added,
    )
    if stable:
        ids = [
            copy.scanner(columns=["id"], with_row_id=True).to_table()
            for copy in (our_copy, lance_copy)
        ]
        assert ids[0] == ids[1]


@pytest.mark.guarantee("U08")
@pytest.mark.parametrize(
    ("after_look", "stable"),
    [
        (False, True),
        (True, True),
        pytest.param(False, False, marks=LONG),
        pytest.param(True, False, marks=LONG),
    ],
)
@pytest.mark.parametrize("act", LOSES, ids=name_of)
def test_a_commit_that_comes_first_stands(db: Connection, act: Act, stable: bool, after_look: bool):
    table = make(db, stable=stable)
    contents: list[list[dict[str, object]]] = []

    def change() -> None:
        act(table.uri)
        contents.append(content(table.uri))

    if after_look and act.__name__ in ("delete_and_clean_up", "clean_up_all"):
        # The concurrent change leaves no trace, so the compaction must fail loudly.
        with (
            before_commit(change, after_look=True),
            pytest.raises(lance_spark.CommitOutcomeUnknownError, match="restore"),
        ):
            table.compact_files(**TWO_IN_ONE)
        return
    with before_commit(change, after_look=after_look):
        result = table.compact_files(**TWO_IN_ONE)
    assert content(table.uri) == contents[0]
    lance.dataset(table.uri).validate()
    # A conflict found by pylance costs one more look, and pylance then deletes some of the work.
    assert result.retries >= LOSES[act] if after_look else result.retries == LOSES[act]
    assert max(fragment_rows(table.uri)) >= 18 and result.fragments_left == 0
    assert table.compact_files(**TWO_IN_ONE).versions == ()
    assert unnamed_files(table.uri) == set()


@pytest.mark.parametrize(
    "act",
    [None, *ON_INDEXES, delete_rows, append],
    ids=lambda act: "nothing" if act is None else name_of(act),
)
@pytest.mark.parametrize(
    ("indexed", "stable"),
    [
        ("BTREE", True),
        ("BITMAP", False),
        *(pytest.param(kind, kind != "BTREE", marks=LONG) for kind in KINDS),
    ],
)
def test_indexes_serve_and_are_right_afterwards(
    db: Connection, act: Act | None, indexed: str, stable: bool
):
    table = make(db, stable=stable)
    lance.dataset(table.uri).create_scalar_index("id", indexed)
    if act is None:
        table.compact_files(**TWO_IN_ONE, commit_granularity=1)
    else:
        with before_commit(lambda: act(table.uri)):
            table.compact_files(**TWO_IN_ONE, commit_granularity=1)
    assert_indexes_are_right(table.uri)
    if act is None and indexed != "ZONEMAP":
        dataset = lance.dataset(table.uri)
        (index,) = dataset.describe_indices()
        covered = {number for segment in index.segments for number in segment.fragment_ids}
        assert {fragment.fragment_id for fragment in dataset.get_fragments()} <= covered
        assert "ScalarIndexQuery" in dataset.scanner(filter="id = 3").explain_plan()


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
@pytest.mark.parametrize("act", ON_INDEXES, ids=name_of)
def test_an_index_that_is_built_meanwhile_covers_what_is_compacted(
    db: Connection, act: Act, stable: bool
):
    table = make(db, stable=stable)
    with before_commit(lambda: act(table.uri)):
        result = table.compact_files(**TWO_IN_ONE)
    assert_indexes_are_right(table.uri)
    assert result.retries == ON_INDEXES[act]
    dataset = lance.dataset(table.uri)
    covered = {
        number
        for index in dataset.describe_indices()
        for part in index.segments
        for number in part.fragment_ids
    }
    present = {fragment.fragment_id for fragment in dataset.get_fragments()}
    assert (present <= covered) == (
        act
        in (
            build_index,
            *[index_change for index_change in ON_INDEXES if "value" in index_change.__name__],
        )
    )


def test_indexes_may_be_kept_up_later(db: Connection):
    table = make(db, stable=False)
    build_index(table.uri)
    table.compact_files(**TWO_IN_ONE, defer_index_remap=True)
    assert "__lance_frag_reuse" in {index.name for index in table.to_lance().describe_indices()}
    assert_indexes_are_right(table.uri)
    stable = make(db, name="stable")
    with pytest.raises(OptionError, match="defer_index_remap"):
        stable.compact_files(**TWO_IN_ONE, defer_index_remap=True)
    stable.to_lance().update_config({"lance.compaction.target_rows_per_fragment": "30"})
    stable.compact_files()
    assert fragment_rows(stable.uri) == [30, 30], "defaults are those of the table"


def test_a_column_that_takes_the_place_of_another_one_gets_nothing_of_it(db: Connection):
    table = make(db)
    lance.dataset(table.uri).add_columns(pa.schema([("first", pa.int64())]))

    def replace_column() -> None:
        lance.dataset(table.uri).drop_columns(["first"])
        lance.dataset(table.uri).add_columns(pa.schema([("second", pa.string())]))

    number = max(column.id() for column in table.to_lance().lance_schema.fields())
    with before_commit(replace_column):
        result = table.compact_files(**TWO_IN_ONE)
    assert number == max(column.id() for column in table.to_lance().lance_schema.fields()), (
        "Lance reuses ids"
    )
    assert result.retries == 3 and table.to_arrow()["second"].null_count == ROWS


def test_writers_that_never_stop_are_left_alone(db: Connection, monkeypatch: pytest.MonkeyPatch):
    table = make(db)
    from lance_spark.upkeep import compaction

    real, rounds = compaction.commit_compacted, list[int]()

    def overtaken(*arguments: Any, **more: Any) -> Any:
        rounds.append(1)
        lance.dataset(table.uri).update({"x": "x + 1"}, where="id = 3")
        return real(*arguments, **more)

    monkeypatch.setattr(compaction, "commit_compacted", overtaken)
    result = table.compact_files(target_rows_per_fragment=1000, commit_max_retries=2)
    assert len(rounds) == 3 and result.versions == () and result.fragments_left > 0
    assert "left, which others kept changing" in repr(result)
    assert table.to_arrow().filter(pa.compute.field("id") == 3)["x"].to_pylist() == [6]


@pytest.mark.long
@pytest.mark.guarantee("U09")
def test_values_that_a_backfill_computes_beside_it_are_carried_over(db: Connection, tmp_path: Path):
    table = make(db)
    log, uri = tmp_path / "log", table.uri

    @udf(data_type=pa.int64())
    def tenfold(id: int) -> int:
        from tests.support.inline_jobs import act_at

        with open(log, "a") as file:
            file.write(f"{id}\n")
        act_at(uri, id)
        return id * 10

    table.add_columns({"tenfold": tenfold})

    def calls() -> list[int]:
        return sorted(map(int, log.read_text().split()))

    with acting(uri, 35, lambda: open_table(uri).compact_files(**TWO_IN_ONE)):
        result = table.backfill("tenfold", commit_granularity=2, task_size=10)
    assert result.rows_carried > 0 and calls() == list(range(ROWS))
    assert table.count_rows("tenfold = id * 10") == ROWS and max(fragment_rows(uri)) == 20
    # The reverse order: a backfill commits while fragments are rewritten.
    table.add([{"id": ROWS + i, "x": 0, "text": ""} for i in range(10)])
    with before_commit(lambda: table.backfill("tenfold")):
        compacted = table.compact_files(target_rows_per_fragment=1000)
    assert compacted.retries == 1 and fragment_rows(uri) == [ROWS + 10]
    assert calls() == list(range(ROWS + 10))
    assert table.count_rows("tenfold = id * 10") == ROWS + 10
    assert (
        table.backfill("tenfold").rows_computed == 0 and not table.plan_backfill("tenfold").has_work
    )


def test_a_damaged_fragment_is_left_and_named_and_the_others_are_compacted(db: Connection):
    table = make(db)
    damaged = table.to_lance().get_fragments()[2]
    path = f"{table.uri}/data/{damaged.data_files()[0].path}"
    open(path, "wb").close()
    lance_spark.dataset._open_pinned.cache_clear()  # type: ignore[attr-defined]
    with pytest.raises(
        UpkeepIncompleteError,
        match=r"fragment 2: .*The other fragments are compacted: 4 fragments became 2",
    ) as e:
        table.compact_files(**TWO_IN_ONE)
    assert (
        isinstance(e.value.result, lance_spark.CompactionResult)
        and e.value.result.fragments_added == 2
    )
    assert sorted(
        fragment.count_rows() for fragment in lance.dataset(table.uri).get_fragments()
    ) == [10, 10, 20, 20]


@pytest.mark.parametrize(
    ("landed", "other_commits"),
    [(True, 2), (False, 0), pytest.param(True, 0, marks=LONG), pytest.param(False, 2, marks=LONG)],
)
def test_a_commit_whose_answer_is_lost(
    db: Connection, monkeypatch: pytest.MonkeyPatch, landed: bool, other_commits: int
):
    table = make(db)
    real = Compaction.commit

    class Lossy:
        plan = Compaction.plan

        @staticmethod
        def commit(dataset: lance.LanceDataset, *rest: Any) -> None:
            if landed:
                real(lance.dataset(dataset.uri, version=dataset.version), *rest)
            for number in range(other_commits):
                lance.write_dataset(rows(ROWS + number, 1), dataset.uri, mode="append")
            raise OSError("the connection was reset")

    monkeypatch.setattr("lance.optimize.Compaction", Lossy)
    if landed:
        assert table.compact_files(**TWO_IN_ONE).versions == (table.version - other_commits,)
        assert fragment_rows(table.uri) == [20, 20, 20] + [1] * other_commits
        return
    with pytest.raises(
        lance_spark.CommitError, match=r"connection was reset.*Nothing was committed"
    ):
        table.compact_files(**TWO_IN_ONE)
    assert unnamed_files(table.uri) == set()
    assert fragment_rows(table.uri)[:FRAGMENTS] == [10] * FRAGMENTS
    assert [job.status for job in table.list_jobs()] == ["FAILED"]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
def test_blobs_and_nested_columns_come_along(db: Connection, version: Any, stable: bool):
    uri = f"{db.uri}/t.lance"
    blobs = [bytes([i]) * (200_000 if i % 7 == 0 else i) for i in range(30)]
    columns: dict[str, pa.Array[Any]] = {
        "id": pa.array(range(30)),
        "nested": pa.array([{"a": i, "b": [{"c": str(i)}]} for i in range(30)]),
    }
    if version == "2.2":
        columns["blob"] = lance.blob_array(
            [None if i == 3 else content_ for i, content_ in enumerate(blobs)]
        )
        data = pa.table({**columns, "blob": columns["blob"]}, schema=pa.schema([
            *(pa.field(n, c.type) for n, c in columns.items() if n != "blob"), lance.blob_field("blob")]))  # fmt: skip
    else:
        blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        schema = pa.schema(
            [*(pa.field(name, column_.type) for name, column_ in columns.items()), blob]
        )
        data = pa.table([*columns.values(), pa.array(blobs, pa.large_binary())], schema=schema)
    lance.write_dataset(
        data, uri, max_rows_per_file=5, data_storage_version=version, enable_stable_row_ids=stable
    )
    table = db.open_table("t")
    table.to_lance().delete("id = 14")

    def read() -> list[bytes | None]:
        blob_files = lance.dataset(uri).take_blobs("blob", indices=[i for i in range(29) if i != 3])
        return [blob_file.readall() for blob_file in blob_files]

    before, plain = read(), table.to_arrow(["id", "nested"])
    table.compact_files()
    assert len(lance.dataset(uri).get_fragments()) == 1
    assert read() == before and table.to_arrow(["id", "nested"]) == plain


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_rows_per_fragment": 0},
        {"max_bytes_per_file": -1},
        {"batch_size": True},
        {"concurrency": 0},
        {"commit_granularity": 1.5},
        {"commit_max_retries": -1},
        {"materialize_deletions": "yes"},
        {"materialize_deletions_threshold": 1.0},
        {"defer_index_remap": 1},
    ],
    ids=str,
)
def test_a_wrong_parameter_is_refused(wrong: dict[str, Any]):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        lance_spark.Table(
            DatasetRef.at("/nowhere"), "t", NoSpark, query_spark=NoSpark
        ).compact_files(**wrong)  # type: ignore[arg-type]


def test_an_older_version_is_not_compacted(db: Connection):
    table = make(db)
    configure(table.uri)
    table.checkout(1)
    with pytest.raises(lance_spark.UnsupportedOperationError, match="checkout_latest"):
        table.compact_files()
