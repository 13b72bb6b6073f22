"""Rows whose value is known are not called again, rows that nobody has computed are, and nothing that is needed is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark.backfill.driver import scheduler as cluster_module
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.backfill.driver.scheduler import Cluster, Lost
from lance_spark.backfill.task.error_log import FailureLog
from lance_spark.backfill.task.messages import DoneRows, FragmentWork, RangeOutcome, Task, dump_outcomes
from lance_spark.errors import UnsupportedTypeError
from tests.lance_spark.backfill.review.lab import Death, InlineCluster, Lab, opposite, values
from udf_runtime import UDF, UdfDefinitionError

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def die(*_: object) -> None:
    raise Death


def test_a_job_id_that_is_used_for_other_rows_leaves_none_of_them_out(lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    table.backfill("v", where="id < 5", job_id="nightly")
    lab.calls()
    table.backfill("v", where="id >= 35", job_id="nightly")
    assert lab.calls() == [35, 36, 37, 38, 39]
    table.backfill("v", where="id >= 30", job_id="nightly")
    assert lab.calls() == [30, 31, 32, 33, 34], "the job has computed the others"


def test_a_job_that_commits_leaves_the_checkpoints_of_rows_that_it_did_not_compute(lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf(bad=frozenset({35}))})
    sizes: dict[str, Any] = {"task_size": 1000, "checkpoint_size": 1, "min_checkpoint_size": 1}
    with pytest.raises(lance_spark.BackfillIncompleteError):
        table.backfill("v", where="id % 5 = 0", **sizes)
    table.backfill("v", where="id % 5 != 0", **sizes)
    lab.calls()
    lab.switch.write_text("0")
    table.backfill("v", where="id % 5 = 0", **sizes)
    assert lab.calls() == [35]


def test_a_job_that_dies_twice_finds_its_first_checkpoints_behind_a_compaction(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf(bad=frozenset({39}))})
    with monkeypatch.context() as patch:
        patch.setattr(GroupCommits, "commit", die)
        with pytest.raises(Death):
            table.backfill("v", job_id="j")
    table.to_lance().optimize.compact_files()
    with monkeypatch.context() as patch:
        patch.setattr(InlineCluster, "run", die)
        with pytest.raises(Death):
            table.backfill("v", job_id="j")
    lab.calls()
    lab.switch.write_text("0")
    table.backfill("v", job_id="j")
    assert lab.calls() == [39]


def test_cleanup_leaves_finished_files_that_a_later_job_can_commit(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf()})
    with monkeypatch.context() as patch:
        patch.setattr(GroupCommits, "commit", die)
        with pytest.raises(Death):
            table.backfill("v")
    assert lance_spark.cleanup(table.uri, older_than=timedelta(0)) == 0
    lab.calls()
    table.backfill("v")
    assert lab.calls() == []
    assert lance_spark.cleanup(table.uri, older_than=timedelta(0)) == 4, "nobody needs them any more"
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}


def test_one_task_that_always_dies_takes_no_other_task_with_it(monkeypatch: pytest.MonkeyPatch):
    class Failing(Cluster):
        def __init__(self) -> None:
            spec: Any = SimpleNamespace(
                snapshot=SimpleNamespace(uri="t", storage_options=()), staging=SimpleNamespace(job_id="s")
            )
            session: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "local[2]"))
            super().__init__(session, spec, limit=None, description="")

        def _submit(self, tasks: Sequence[Task]) -> list[tuple[int, bytes]]:
            if any(task.number == 7 for task in tasks):
                raise RuntimeError("task 7 died")
            outcomes = [RangeOutcome(fragment_id=task.number, start=0, stop=1) for task in tasks]
            return [(0, dump_outcomes(outcomes))]

        def _reports(self) -> list[RangeOutcome]:
            return []

    monkeypatch.setattr(cluster_module, "cancel", lambda *_: None)
    monkeypatch.setattr(cluster_module, "record_ranges", lambda *_, **__: None)
    tasks = [
        Task(
            number=i,
            work=(FragmentWork(fragment_id=i, start=0, stop=1, ranges=((0, 1),), done=DoneRows(), search=False),),
        )
        for i in range(1000)
    ]
    answers = [answer for some in Failing().run(tasks, 1.0) for answer in some]
    assert [answer.task.number for answer in answers if isinstance(answer, Lost)] == [7]
    assert len(answers) == len(tasks)


def test_failures_of_many_rows_are_not_held_until_the_range_ends(monkeypatch: pytest.MonkeyPatch):
    from lance_spark.backfill.task import error_log as failures

    written: list[int] = []
    monkeypatch.setattr(failures, "append_rows", lambda _ref, _table, rows, **_: written.append(rows.num_rows))
    monkeypatch.setattr(failures, "_HELD_RECORDS", 10)
    spec: Any = SimpleNamespace(
        staging=SimpleNamespace(job_id="s"),
        job_id="j",
        snapshot=SimpleNamespace(uri="t", version=1),
        outputs=(("", "v"),),
        key=SimpleNamespace(udf_name="f", udf_version="1"),
        input_names=("id",),
    )
    log = FailureLog(spec, 0)
    for offset in range(25):
        log.add_error(ValueError("no"), offset)
    assert written == [10, 10]
    log.write()
    assert written == [10, 10, 5]


def test_a_renamed_table_finds_its_checkpoints_elsewhere(tmp_path: Path):
    db = lance_spark.connect(str(tmp_path / "db"), checkpoint=str(tmp_path / "kept"))
    db.create_table("one", IDS)
    other = lance_spark.connect(str(tmp_path / "other"), checkpoint=str(tmp_path / "kept"))
    place = db._checkpoint_of(db._uri_of("one"))
    assert place is not None
    assert place != other._checkpoint_of(other._uri_of("one")), "tables of one name in two folders share nothing"
    Path(place).mkdir(parents=True)
    (Path(place) / "checkpoint").write_text("")
    db.rename_table("one", "two")
    assert [str(path.parent) for path in tmp_path.rglob("checkpoint")] == [db._checkpoint_of(db._uri_of("two"))]


def test_a_table_that_somebody_makes_at_the_same_moment_is_not_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from lance_spark import tabular

    db = lance_spark.connect(str(tmp_path / "db"))
    to_reader = tabular.to_reader

    def after_somebody_else(*given: Any, **named: Any) -> pa.RecordBatchReader:
        lance.write_dataset(pa.table({"id": [100]}), str(tmp_path / "db" / "t.lance"))
        return to_reader(*given, **named)

    monkeypatch.setattr(tabular, "to_reader", after_somebody_else)
    with pytest.raises(lance_spark.TableExistsError):
        db.create_table("t", IDS)
    assert db.open_table("t").to_arrow().to_pydict() == {"id": [100]}


@pytest.mark.parametrize("kind", [pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])])
def test_a_column_is_not_dropped_for_a_udf_whose_type_lance_does_not_have(kind: pa.DataType, lab: Lab):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    table.backfill("v")
    with pytest.raises(UnsupportedTypeError):
        table.alter_columns({"path": "v", "udf": opposite(kind), "recreate": True})
    assert values(table, "v") == {i: (i,) for i in range(ROWS)}


def test_the_history_is_read_once_however_many_commits_a_job_makes(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    from lance_spark.commit.conflicts import history

    reads: list[int] = []
    read = history._event

    def counting(dataset: lance.LanceDataset, version: int) -> history.Event:
        reads.append(version)
        return read(dataset, version)

    monkeypatch.setattr(history, "_event", counting)
    table = lab.make(IDS, rows_per_file=2)
    table.add_columns({"v": lab.udf()})
    reads.clear()
    assert len(table.backfill("v", commit_granularity=1, task_size=2).versions) == ROWS // 2
    assert len(reads) <= 2 * ROWS // 2, "two per commit, and not two per pair of commits"


def test_a_udf_that_cannot_be_loaded_is_said_for_every_range_and_tried_once(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    table = lab.make(IDS, rows_per_file=10)
    table.add_columns({"v": lab.udf()})
    loads = UDF.loads
    tries: list[bytes] = []

    def elsewhere(payload: bytes) -> UDF:
        tries.append(payload)
        if len(tries) == 1:
            return loads(payload)  # the driver has the module that executors lack
        raise UdfDefinitionError("No module named 'mine'")

    monkeypatch.setattr(UDF, "loads", staticmethod(elsewhere))
    with pytest.raises(
        lance_spark.BackfillIncompleteError, match=r"cannot be loaded on an executor: No module named 'mine'"
    ):
        table.backfill("v")
    assert lab.calls() == []
