"""Values and their rows: any order, any split, any subset, compared with a model; and unusable rows."""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    ColumnNotFoundError,
    CommitError,
    OptionError,
    RowAddressError,
    SchemaMismatchError,
    SnapshotError,
    TableNotFoundError,
    TableUnwritableError,
    UnsupportedTypeError,
)
from lance_spark.rebase.snapshot import open_snapshot
from lance_spark.staging import area, column_file
from lance_spark.staging.area import OPEN_FILES
from lance_spark.staging.data_file import StagedFile
from lance_spark.write import sorted_runs
from tests.lance_spark.write.backfills import (
    Backfill,
    column,
    computed,
    make_table,
    orphans,
    snapshot_rows,
    table_metadata,
)

pytestmark = pytest.mark.sample(1, tests=2)

LONG = spark.LongType()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table.lance")


@st.composite
def splits(draw: st.DrawFn, rows: list[Any]) -> list[list[list[Any]]]:
    """Any subset of the rows in any order, as batches of tasks."""
    chosen = draw(st.permutations(rows))[: draw(st.integers(0, len(rows)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(chosen)), max_size=6)))
    batches = [chosen[a:b] for a, b in itertools.pairwise([0, *cuts, len(chosen)])]
    task_of = [draw(st.integers(0, 2)) for _ in batches]
    return [[b for b, t in zip(batches, task_of, strict=True) if t == task] for task in range(3)]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_value_is_in_its_row_and_no_other_changes(
    data: st.DataObject, tmp_path: Path
) -> None:
    path = str(tmp_path / "model.lance")
    shutil.rmtree(path, ignore_errors=True)
    sizes = data.draw(st.sampled_from([(1, 7), (3, 5), (4, 1)]))
    make_table(path, fragments=sizes[0], rows=sizes[1], stable=data.draw(st.booleans()))
    deleted = data.draw(st.sets(st.integers(0, sizes[0] * sizes[1] - 1), max_size=6))
    if deleted and len(deleted) < sizes[0] * sizes[1]:
        lance.dataset(path).delete(f"id in ({', '.join(map(str, deleted))})")
    by = data.draw(st.sampled_from(["_rowaddr", "_rowid"]))
    model: dict[int, Any] = dict.fromkeys(column(path, "text"))
    with pytest.MonkeyPatch.context() as patch:
        # Small limits, so that a few rows make several runs, merge steps and windows.
        patch.setattr(sorted_runs, "RUN_BYTES", data.draw(st.sampled_from([1, 60, 1 << 20])))
        patch.setattr(
            column_file, "_MOST_WINDOW_ROWS", data.draw(st.sampled_from([1, 2, 3, 1 << 16]))
        )
        patch.setattr(column_file, "_LEAST_WINDOW_ROWS", 1)
        patch.setattr(sorted_runs, "LEAST_MERGE_ROWS", data.draw(st.sampled_from([1, 2, 1024])))
        patch.setattr(sorted_runs, "MERGE_BYTES", data.draw(st.sampled_from([1, 1 << 20])))
        for round_ in (1, 2):
            exclusive = data.draw(st.booleans()) and by == "_rowaddr"
            job = Backfill(path, "c", LONG, address=by, spec={"exclusive": exclusive})
            rows = [
                (a, data.draw(st.none() | st.just(k * 10 + round_)), k)
                for a, k in snapshot_rows(path, by=by)
            ]
            tasks = data.draw(splits(rows))
            if exclusive:
                together = sorted(
                    itertools.chain.from_iterable(itertools.chain.from_iterable(tasks))
                )
                tasks = [[[row for row in together if row[0] >> 32 == f] for f in range(sizes[0])]]
            messages = [
                job.task([job.batch([r[0] for r in b], [r[1] for r in b]) for b in batches])
                for batches in tasks
            ]
            result = job.commit(*messages)
            given_rows = list(itertools.chain.from_iterable(itertools.chain.from_iterable(tasks)))
            model |= {key: value for _, value, key in given_rows}
            assert result.rows == len(given_rows)
            assert column(path, "c") == model
            assert orphans(path) == set()
    assert column(path, "text") == {k: f"t{k}" for k in model}


TYPES: list[tuple[spark.DataType, Any, Any]] = [
    (spark.BooleanType(), True, False),
    (spark.DoubleType(), float("inf"), -0.0),
    (spark.StringType(), "", "é" * 300),
    (spark.BinaryType(), b"", b"\x00\xff"),
    (spark.DecimalType(20, 3), __import__("decimal").Decimal("1.500"), None),
    (spark.ArrayType(spark.StringType()), [], ["a", None]),
    (spark.StructType([spark.StructField("a", LONG), spark.StructField("b", spark.ArrayType(LONG))]), {"a": 1, "b": []}, {"a": None, "b": None}),
    (spark.MapType(spark.StringType(), LONG), [("k", 1)], []),
    (spark.DateType(), __import__("datetime").date(1, 1, 1), __import__("datetime").date(9999, 12, 31)),
]  # fmt: skip


@pytest.mark.parametrize("exclusive", [False, True], ids=["runs", "direct"])
@pytest.mark.parametrize(
    ("type", "first_value", "second_value"), TYPES, ids=[t[0].simpleString()[:12] for t in TYPES]
)
def test_every_kind_of_value_is_written_and_other_rows_keep_their_values(
    type: spark.DataType,
    first_value: Any,
    second_value: Any,
    exclusive: bool,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_table(path)
    monkeypatch.setattr(column_file, "_MOST_WINDOW_ROWS", 4)
    monkeypatch.setattr(column_file, "_LEAST_WINDOW_ROWS", 1)
    spec = {"exclusive": exclusive}
    rows = snapshot_rows(path)
    Backfill(path, "c", type, spec=spec).run([(a, first_value) for a, k in rows if k % 3])
    assert column(path, "c") == {k: first_value if k % 3 else None for _, k in rows}
    rows = snapshot_rows(path)
    Backfill(path, "c", type, spec=spec).run([(a, second_value) for a, k in rows if k % 2])
    assert column(path, "c") == {
        k: second_value if k % 2 else first_value if k % 3 else None for _, k in rows
    }


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_every_file_format_is_filled(version: str, path: str) -> None:
    lance.write_dataset(
        pa.table({"id": range(20)}), path, data_storage_version=version, max_rows_per_file=8
    )
    vectors = pa.schema([("c", pa.list_(pa.float32(), 2))])
    lance.dataset(path).add_columns(vectors)
    job = Backfill(path, "c", spark.ArrayType(spark.FloatType()))
    job.run([(a, [k, k]) for a, k in snapshot_rows(path) if k % 2])
    assert column(path, "c") == {k: [k, k] if k % 2 else None for k in range(20)}
    assert lance.dataset(path).schema.field("c").type == pa.list_(pa.float32(), 2)


def test_nothing_but_the_target_is_rewritten(path: str) -> None:
    make_table(path)
    before = {
        f.path for fragment in lance.dataset(path).get_fragments() for f in fragment.metadata.files
    }
    job = Backfill(path, "c", LONG)
    job.run(computed(snapshot_rows(path))[:12])
    after = lance.dataset(path).get_fragments()
    new = [[f for f in fragment.metadata.files if f.path not in before] for fragment in after]
    assert [len(files) for files in new] == [1, 1, 0], "only fragments with values get a file"
    ids = {field.name(): field.id() for field in lance.dataset(path).lance_schema.fields()}
    assert all(list(f.fields) == [ids["c"]] for files in new for f in files)


def test_no_rows_make_a_new_column_of_nulls_and_no_version_otherwise(path: str) -> None:
    make_table(path)
    Backfill(path, "c", LONG).run([])
    assert set(column(path, "c").values()) == {None}
    version = lance.dataset(path).version
    assert Backfill(path, "c", LONG).run([]).version == version == lance.dataset(path).version


BAD = {
    "without an address": lambda rows: [(None, 1), (None, 2)],
    "with a negative address": lambda rows: [(-1, 1), (-(1 << 63), 2)],
    "not in the snapshot": lambda rows: [(10, 1), ((1 << 62), 2)],
    "deleted in the snapshot": lambda rows: [(3, 1), ((1 << 32) + 3, 2)],
    "given more than once": lambda rows: [(rows[0][0], 1), (rows[5][0], 2)],
}


@pytest.mark.parametrize("layout", ["one task", "several tasks", "direct"])
@pytest.mark.parametrize("kind", BAD)
def test_rows_that_cannot_be_used_are_counted_and_nothing_is_committed(
    kind: str, layout: str, path: str
) -> None:
    make_table(path)
    lance.dataset(path).delete("id in (3, 13)")
    rows = computed(snapshot_rows(path))
    version = lance.dataset(path).version
    bad = BAD[kind](rows)
    job = Backfill(path, "c", LONG, spec={"exclusive": layout == "direct"})
    everything = sorted([*rows, *bad], key=lambda row: (row[0] is not None, row[0] or 0))
    batches = [everything[:11], everything[11:]] if layout != "several tasks" else [rows, bad]
    if layout == "several tasks":
        messages = [job.task([job.batch(*zip(*batch, strict=True))]) for batch in batches]
    else:
        messages = [job.task([job.batch(*zip(*batch, strict=True)) for batch in batches])]
    with pytest.raises(RowAddressError, match=f"2 {kind}") as caught:
        job.commit(*messages)
    assert sum(caught.value.counts.values()) == 2
    if kind != "without an address":
        assert sorted(next(iter(caught.value.examples.values()))) == sorted(a for a, _ in bad)
    assert lance.dataset(path).version == version
    assert orphans(path) == set()


def test_all_kinds_are_in_one_error(path: str) -> None:
    make_table(path)
    lance.dataset(path).delete("id = 3")
    rows = computed(snapshot_rows(path))
    with pytest.raises(RowAddressError) as caught:
        Backfill(path, "c", LONG).run(
            [*rows, (None, 0), (-5, 0)], [(3, 0), (99 << 32, 0)], rows[:4]
        )
    assert set(caught.value.counts.values()) == {1, 4} and len(caught.value.counts) == 5


def test_unknown_and_deleted_row_ids_are_counted(path: str) -> None:
    make_table(path)
    lance.dataset(path).delete("id = 3")
    rows = computed(snapshot_rows(path, by="_rowid"))
    with pytest.raises(RowAddressError, match="2 not in the snapshot, or deleted there"):
        Backfill(path, "c", LONG, address="_rowid").run([*rows, (3, 1), (1000, 1)])


@pytest.mark.sample(1)
def test_row_ids_find_rows_that_an_update_and_a_compaction_moved(path: str) -> None:
    make_table(path)
    lance.dataset(path).update({"text": "'x'"}, where="id in (2, 17)")
    lance.dataset(path).delete("id in (5, 6)")
    lance.dataset(path).optimize.compact_files()
    rows = snapshot_rows(path, by="_rowid")
    assert dict(rows) != dict(snapshot_rows(path))
    Backfill(path, "c", LONG, address="_rowid").run(computed(rows)[::-1])
    assert column(path, "c") == {k: k * 10 for _, k in rows}


@pytest.mark.parametrize("order", ["descending", "interleaved"])
def test_a_task_finds_that_the_promise_of_order_was_broken(order: str, path: str) -> None:
    make_table(path)
    rows = computed(snapshot_rows(path))
    job = Backfill(path, "c", LONG, spec={"exclusive": True})
    given_rows = rows[::-1] if order == "descending" else rows[:3] + rows[10:12] + rows[3:5]
    batch = job.batch(*zip(*given_rows, strict=True))
    with pytest.raises(CommitError, match="disable_pushdown"):
        job.task([batch])
    job.writer.abort([])
    assert orphans(path) == set()


def test_the_commit_finds_that_rows_of_a_fragment_came_in_two_tasks(path: str) -> None:
    make_table(path)
    rows = computed(snapshot_rows(path))
    job = Backfill(path, "c", LONG, spec={"exclusive": True})
    with pytest.raises(CommitError, match="disable_pushdown"):
        job.run(rows[:5], rows[5:])
    assert orphans(path) == set()
    assert "c" not in lance.dataset(path).schema.names


@pytest.mark.parametrize("exclusive", [False, True], ids=["runs", "direct"])
def test_verify_columns_find_the_right_rows_behind_deleted_ones(exclusive: bool, path: str) -> None:
    make_table(path)
    lance.dataset(path).delete("id in (1, 2, 15)")
    extra = [spark.StructField("id", LONG)]
    job = Backfill(
        path,
        "c",
        LONG,
        options={"verify_columns": "id"},
        extra=extra,
        spec={"exclusive": exclusive},
    )
    live = snapshot_rows(path)
    job.commit(
        job.task([job.batch([a for a, _ in live], [k * 10 for _, k in live], [k for _, k in live])])
    )
    assert column(path, "c") == {k: k * 10 for _, k in live}


@pytest.mark.parametrize("exclusive", [False, True], ids=["runs", "direct"])
def test_verify_columns_find_rows_of_another_version(exclusive: bool, path: str) -> None:
    make_table(path)
    lance.dataset(path).delete("id in (1, 2)")
    old = snapshot_rows(path)
    lance.dataset(path).optimize.compact_files()
    extra = [spark.StructField("id", LONG)]
    job = Backfill(
        path,
        "c",
        LONG,
        options={"verify_columns": "id"},
        extra=extra,
        spec={"exclusive": exclusive},
    )
    live = snapshot_rows(path)
    wrong = [(a, k) for (a, _), (_, k) in zip(live, live[1:] + live[:1], strict=True)]
    assert len(wrong) == 28 and wrong != old
    with pytest.raises(RowAddressError, match="28 that differ from the table in verify_columns"):
        job.commit(job.task([job.batch([a for a, _ in wrong], [0] * 28, [k for _, k in wrong])]))
    assert "c" not in lance.dataset(path).schema.names
    job = Backfill(
        path,
        "c",
        LONG,
        options={"verify_columns": "id"},
        extra=extra,
        spec={"exclusive": exclusive},
    )
    job.commit(
        job.task([job.batch([a for a, _ in live], [k * 10 for _, k in live], [k for _, k in live])])
    )
    assert column(path, "c") == {k: k * 10 for _, k in live}


def test_verify_columns_compare_nested_values_nulls_and_nan(path: str) -> None:
    lists = [[1.0], None, [float("nan")], [], [2.0]]
    floats = [1.0, None, float("nan"), 0.0, 5.0]
    lance.write_dataset(
        pa.table({"id": range(5), "l": pa.array(lists), "f": pa.array(floats)}), path
    )
    extra = [
        spark.StructField("l", spark.ArrayType(spark.DoubleType())),
        spark.StructField("f", spark.DoubleType()),
    ]
    job = Backfill(path, "c", LONG, options={"verify_columns": "l,f"}, extra=extra)
    with pytest.raises(RowAddressError, match=r"2 that differ .* \(first: 1, 4\)"):
        job.commit(
            job.task(
                [
                    job.batch(
                        range(5), range(5), [[1.0], [], lists[2], [], [2.0]], [*floats[:4], 6.0]
                    )
                ]
            )
        )


def plan(path: str, **options: Any) -> Backfill:
    return Backfill(path, options.pop("name", "c"), options.pop("type", LONG), **options)


def test_addresses_of_another_table_are_refused(path: str, tmp_path: Path) -> None:
    make_table(path)
    other_path = str(tmp_path / "other.lance")
    make_table(other_path)
    with pytest.raises(SnapshotError, match="another table"):
        plan(path, metadata=table_metadata(Backfill(other_path, "c", LONG).ref))


@pytest.mark.sample(1)
def test_addresses_of_a_recreated_table_are_refused(path: str) -> None:
    make_table(path)
    # No inputs: then nothing but the incarnation tells the tables apart.
    old = Backfill(path, "c", LONG, spec={"input_columns": []})
    message = old.task([old.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    metadata = table_metadata(old.ref)
    shutil.rmtree(path)
    make_table(path)
    for check in (lambda: plan(path, metadata=metadata), lambda: old.commit(message)):
        with pytest.raises(
            (SnapshotError, CommitError),
            match=r"made anew|recreated|created again|no longer exists",
        ):
            check()
    assert "c" not in lance.dataset(path).schema.names


def test_the_error_for_a_recreated_snapshot_has_single_full_stops(path: str) -> None:
    make_table(path)
    snapshot = DatasetRef(uri=path).pin(1)
    shutil.rmtree(path)
    make_table(path)
    with pytest.raises(
        CommitError, match=r"recreated since version 1 was read.*again\. The table is"
    ):
        open_snapshot(snapshot)


def test_addresses_without_a_version_are_refused_unless_an_option_says_it(path: str) -> None:
    make_table(path)
    lance.dataset(path).delete("id = 0")
    lance.dataset(path).optimize.compact_files()
    with pytest.raises(SnapshotError, match=r"option\('version', N\)"):
        plan(path, metadata={})
    version = lance.dataset(path).version
    plan(path, metadata={}, options={"version": str(version)}).run(computed(snapshot_rows(path)))
    assert column(path, "c") == {k: k * 10 for k in range(1, 30)}


@pytest.mark.parametrize(
    "contradiction", [{"version": 1}, {"uri": "/elsewhere"}, {"branch": "experiment"}]
)
def test_columns_that_contradict_the_target_are_refused(
    contradiction: dict[str, Any], path: str
) -> None:
    make_table(path)
    metadata = table_metadata(Backfill(path, "c", LONG).ref, **contradiction)
    with pytest.raises(SnapshotError):
        plan(path, metadata=metadata, options={"version": "3"})


def test_two_versions_in_one_query_are_refused(path: str) -> None:
    make_table(path)
    identity = table_metadata(Backfill(path, "c", LONG).ref)["lance.table"]
    before = table_metadata(Backfill(path, "c", LONG, version=1).ref)["lance.table"]
    with pytest.raises(SnapshotError, match="2 reads"):
        plan(path, spec={"snapshots": [identity, before]})
    plan(path, spec={"snapshots": [identity, identity]})
    with pytest.raises(SnapshotError, match="reads row addresses at version 3"):
        plan(path, metadata={}, options={"version": "1"}, spec={"snapshots": [identity]})


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"address": "nothing"}, SchemaMismatchError, "neither _rowaddr nor _rowid"),
        ({"extra": [spark.StructField("_rowid", LONG)]}, SchemaMismatchError, "both"),
        ({"name": "_row_created_at_version"}, SchemaMismatchError, "kept by Lance"),
        ({"name": "text.length"}, SchemaMismatchError, "inside a struct"),
        ({"name": "Text"}, SchemaMismatchError, "'text' only in case"),
        ({"name": "text", "type": spark.ArrayType(LONG)}, SchemaMismatchError, "text"),
        ({"extra": [spark.StructField("c", LONG)]}, SchemaMismatchError, "twice"),
        ({"options": {"verify_columns": "id"}}, ColumnNotFoundError, "'id'"),
        ({"options": {"input_columns": "txt"}}, ColumnNotFoundError, "'txt'"),
        (
            {"options": {"other.lance.encoding": "blob"}, "name": "other"},
            OptionError,
            "that the table has",
        ),
        (
            {"name": "b", "type": spark.BinaryType(), "options": {"b.lance.encoding": "blob"}},
            UnsupportedTypeError,
            "blob",
        ),
    ],
    ids=range(11),
)
def test_unsupported_backfills_are_refused_before_a_row_is_written(
    arguments: dict[str, Any], error: type[Exception], text: str, path: str
) -> None:
    make_table(path)
    with pytest.raises(error, match=text):
        plan(path, **arguments)
    assert orphans(path) == set()


def test_a_backfill_needs_a_table(path: str) -> None:
    make_table(path)
    job = Backfill(path, "c", LONG)
    shutil.rmtree(path)
    with pytest.raises((TableNotFoundError, SnapshotError, CommitError)):
        job.commit()


def test_inputs_are_the_option_else_the_plan_else_all_others(path: str) -> None:
    make_table(path, c=pa.int64())
    for options, spec, expected in (
        ({"input_columns": "text"}, {"input_columns": ["id"]}, (("text",), "option")),
        ({}, {"input_columns": ["_rowaddr", "id", "c"]}, (("id",), "plan")),
        ({}, {}, (("id", "text", "other"), "all")),
    ):
        result = plan(path, options=options, spec=spec).run(computed(snapshot_rows(path)))
        assert (result.input_columns, result.inputs_from) == expected


@pytest.mark.sample(1)
def test_a_job_that_failed_leaves_nothing(path: str) -> None:
    make_table(path)
    job = Backfill(path, "c", LONG)
    rows = computed(snapshot_rows(path))
    job.task([job.batch(*zip(*rows, strict=True))])
    direct = Backfill(path, "c", LONG, spec={"exclusive": True})
    direct.task([direct.batch(*zip(*rows, strict=True))])
    assert orphans(path)
    job.writer.abort([])
    direct.writer.abort([])
    assert orphans(path) == set()


def test_files_of_fragments_on_an_object_store_end_at_the_same_time(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of each file waits for the end of the others."""
    make_table(path, fragments=OPEN_FILES)
    ends, close = threading.Barrier(OPEN_FILES, timeout=5), StagedFile.close

    def close_together(file: StagedFile) -> int:
        ends.wait()
        return close(file)

    job = Backfill(f"file-object-store://{path}", "c", LONG, spec={"exclusive": True})
    monkeypatch.setattr(StagedFile, "close", close_together)
    job.commit(job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))]))
    assert column(path, "c") == {key: key * 10 for key in range(10 * OPEN_FILES)}


@pytest.mark.parametrize("failing", [0, 1, 5])
def test_a_file_that_fails_behind_the_next_rows_fails_its_task(
    failing: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(path, fragments=6)
    close = StagedFile.close

    def close_or_fail(file: StagedFile) -> int:
        if file.name.endswith(f"-{failing}.lance"):
            raise TableUnwritableError(path, "the store is full")
        return close(file)

    monkeypatch.setattr(area, "CHECK_S", 0.0)
    job = Backfill(f"file-object-store://{path}", "c", LONG, spec={"exclusive": True})
    monkeypatch.setattr(StagedFile, "close", close_or_fail)
    with pytest.raises(TableUnwritableError, match="the store is full"):
        job.task([job.batch(*zip(*computed(snapshot_rows(path)), strict=True))])
    job.writer.abort([])
    assert orphans(path) == set()


@pytest.mark.sample(1)
def test_retried_and_speculative_attempts_double_nothing(path: str) -> None:
    make_table(path)
    for exclusive in (False, True):
        job = Backfill(path, "c", LONG, spec={"exclusive": exclusive})
        batch = job.batch(*zip(*computed(snapshot_rows(path)), strict=True))
        job.task([batch])
        message = job.task([batch])
        job.task([batch])
        assert job.commit(message).rows == 30
        assert column(path, "c") == {k: k * 10 for k in range(30)}
        assert orphans(path) == set()


def test_a_fragment_of_many_rows_is_merged_from_many_runs(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 1 << 18)
    monkeypatch.setattr(sorted_runs, "MERGE_BYTES", 1 << 18)
    count = 100_000
    lance.write_dataset(pa.table({"id": np.arange(count)}), path, max_rows_per_file=60_000)
    job = Backfill(path, "c", LONG)
    rows = snapshot_rows(path)
    order = np.random.default_rng(3).permutation(count)
    batches = [
        job.batch([rows[i][0] for i in part], [rows[i][1] * 10 for i in part])
        for part in np.array_split(order, 20)
    ]
    messages = [job.task(batches[:12]), job.task(batches[12:])]
    assert sum(len(m.runs) for m in messages) > 4
    job.commit(*messages)
    table = lance.dataset(path).to_table()
    assert np.array_equal(table["c"].to_numpy(), table["id"].to_numpy() * 10)
