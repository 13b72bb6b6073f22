"""The agent: plans in the order of dependencies, runs, trust, budgets, backoff, debouncing, and looks without work."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from pyspark import SparkConf

from lance_spark import (
    Agent,
    AgentPlan,
    AgentStep,
    CommitConflictError,
    Connection,
    Job,
    OptionError,
    Table,
    TableNotFoundError,
    cli,
    connect,
)
from lance_spark.agent import lease, ledger, looks, planner
from lance_spark.agent.agent import _PendingStep
from lance_spark.agent.lease import Lease
from lance_spark.agent.settings import join_names
from lance_spark.backfill.spending import Spending
from lance_spark.session.catalogs import allows_stored_code
from lance_spark.views import refresh
from lance_spark.views.chunked import calls
from lance_spark.views.refresh import RefreshJob
from lance_spark.views.state import CONFIG_KEY, Refreshed
from tests.support.logs import Log, doubled, flag_file, make, values, with_column
from tests.support.records import job_record
from tests.support.waiting import eventually
from udf_runtime import chunker, skip_on_error, udf

SOON = timedelta(milliseconds=50)


@udf(version="1", cost=0.5)
def quadruple(y: int) -> int:
    return 2 * y


@udf(version="1")
def triple(y: int | None) -> int | None:
    return None if y is None else 3 * y


@udf(version="1")
def total(y: int | None, a: int | None) -> int | None:
    return None if y is None or a is None else y + a


class Half(NamedTuple):
    """A chunk."""

    y: int


@chunker(version="1", cost=0.25)
def halves(x: int) -> Iterator[Half]:
    yield from (Half(x), Half(-x))


def statuses(plan: AgentPlan) -> dict[str, str]:
    return {step.name: step.status for step in plan.steps}


def append(table: Table, *rows: int) -> None:
    lance.write_dataset(pa.table({"x": pa.array(rows, pa.int64())}), table.uri, mode="append")


@pytest.fixture
def table(db: Connection, log: Log) -> Table:
    """A table of `x`, `y` computed from `x`, and `a` computed from `y`."""
    table = make(db, rows=20, fragments=2)
    # Neither names nor places may decide the order.
    table.add_columns({"a": (quadruple, ["x"])}, auto_backfill=True)
    table.add_columns({"y": log.doubling()}, auto_backfill=True)
    table.alter_columns({"path": "a", "udf": quadruple})
    return table


@pytest.fixture
def agent(db: Connection, table: Table, request: pytest.FixtureRequest) -> Agent:
    """An agent with one job at once, or with the number of jobs of the parameter."""
    jobs = getattr(request, "param", 1)
    return db.agent(allow=["t"], max_jobs=jobs, debounce=timedelta(0), trigger=SOON)


def test_a_plan_has_the_order_of_dependencies_with_rows(db: Connection, table: Table, agent: Agent):
    view = db.create_materialized_view(
        "b", table.search(None).select(["x", "a"]), auto_refresh=True
    )
    view.add_columns({"z": (quadruple, ["a"])}, auto_backfill=True)
    db.create_materialized_view("A", view.search(None).select(["x"]), auto_refresh=True)
    db.create_materialized_view("of_x", table.search(None).select(["x"]), auto_refresh=True)
    plan = db.agent(allow=["*"]).plan()
    assert [(step.name, step.after, step.rows) for step in plan.steps if step.name != "of_x"] == [
        ("t.y", (), 20),
        ("t.a", ("t.y",), 20),
        ("b", ("t.a",), 20),
        ("b.z", ("b",), None),
        ("A", ("b",), None),
    ]
    assert next(step.after for step in plan.steps if step.name == "of_x") == ()
    assert "backfill of t.a: due. 20 rows, after t.y" in plan.explain()
    assert table.list_jobs() == []


def test_a_run_fills_columns_in_order_and_the_next_run_has_nothing_to_do(
    table: Table, agent: Agent, log: Log
):
    plan = agent.run_once()
    assert statuses(plan) == {"t.y": "done", "t.a": "done"}
    assert [step.result.rows_computed for step in plan.steps] == [20, 20]
    assert values(table, "a") == {x: 4 * x for x in range(20)}
    assert agent.run_once().steps == () and agent.plan().steps == ()
    append(table, 100)
    lance.dataset(table.uri).update({"x": "x + 50"}, where="x < 2")
    assert statuses(agent.run_once()) == {"t.y": "done", "t.a": "done"}
    assert values(table) == doubled([*range(2, 20), 100, 50, 51])
    assert log.rows() == sorted([*range(20), 100, 50, 51])
    assert {job.status for job in table.list_jobs()} == {"DONE"} and len(table.list_jobs()) == 4


def test_earlier_jobs_estimate_time_and_cost(db: Connection, table: Table, agent: Agent):
    agent.run_once()
    append(table, *range(100, 110))
    y, a = agent.plan().steps
    assert (y.rows, a.rows, a.estimated_cost) == (10, 10, 5.0)
    assert y.estimated_seconds > 0 and not y.estimated_cost
    with pytest.raises(OptionError, match="sample"):
        agent.plan(sample=0)


@pytest.mark.long
@pytest.mark.spark
def test_a_sample_estimates_columns_without_earlier_jobs(db: Connection, log: Log):
    table = with_column(db, log.doubling(auto_backfill=True, cost=0.5), rows=20, fragments=2)
    (step,) = db.agent(allow=["*"]).plan().steps
    assert step.estimated_cost is None
    (step,) = db.agent(allow=["*"]).plan(sample=8).steps
    assert (step.rows, step.estimated_cost, len(log.lines())) == (20, pytest.approx(6.0), 8)
    assert step.estimated_seconds > 0
    # The sample is an earlier job of the next plan.
    (step,) = db.agent(allow=["*"]).plan(sample=8).steps
    assert (step.estimated_cost, len(log.lines())) == (pytest.approx(6.0), 8)
    db.agent(allow=["*"]).run_once()
    assert log.rows() == [*range(20)] and values(table) == doubled(range(20))


@pytest.mark.guarantee("W02")
def test_stored_code_runs_only_for_allowed_tables(db: Connection, table: Table, log: Log):
    other = with_column(db, log.doubling(auto_backfill=True), name="other")
    plan = db.agent(allow=["o*"]).run_once()
    assert statuses(plan) == {"other.y": "done", "t.y": "not allowed", "t.a": "not allowed"}
    assert values(table) == dict.fromkeys(range(20)) and values(other) == doubled(range(40))
    assert statuses(db.agent().run_once()) == {
        "t.y": "not allowed",
        "t.a": "not allowed",
        "other.y": "not allowed",
    }


def test_a_catalog_with_allow_stored_code_allows_the_tables_of_its_folder(
    db: Connection, table: Table
):
    conf = SparkConf(loadDefaults=False).set("spark.sql.catalog.lance", "lancespark.LanceCatalog")
    conf.set("spark.sql.catalog.lance.root", db.uri)
    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.session"})()
    session.sparkContext = SimpleNamespace(getConf=lambda: conf)
    agent = db.agent()
    agent._planner.source = dataclasses.replace(agent._planner.source, find_session=lambda: session)
    assert statuses(agent.plan()) == {"t.y": "not allowed", "t.a": "not allowed"}
    conf.set("spark.sql.catalog.lance.allow_stored_code", "true")
    assert statuses(agent.plan()) == {"t.y": "due", "t.a": "due"}
    assert not allows_stored_code(session, f"{db.uri}/inside")


def test_a_column_of_another_product_is_left_alone_unless_claimed(db: Connection, table: Table):
    lance.dataset(table.uri).update_field_metadata({"y": {"virtual_column": "true"}})
    agent = db.agent(allow=["t"])
    assert statuses(agent.plan()) == {"t.y": "other product", "t.a": "due"}
    assert statuses(db.agent(allow=["t"], claim=["t.y"]).plan()) == {"t.y": "due", "t.a": "due"}


@pytest.mark.guarantee("W03")
def test_the_budget_of_an_hour_bounds_the_jobs_of_all_agents(
    db: Connection, table: Table, log: Log
):
    plan = db.agent(allow=["t"], max_calls=20).run_once()
    assert statuses(plan) == {"t.y": "done", "t.a": "waiting"} and "budget" in str(
        plan.steps[1].reason
    )
    # The next agent knows the jobs of its predecessor.
    later = db.agent(allow=["t"], max_cost=5.0, max_calls=20)
    assert statuses(later.plan()) == statuses(later.run_once()) == {"t.a": "waiting"}
    assert sum(job.rows_computed for job in table.list_jobs()) == 20
    assert statuses(db.agent(allow=["t"], max_calls=40).run_once()) == {"t.a": "done"}


def test_the_calls_of_a_refresh_count_once(db: Connection, log: Log):
    source = db.create_table("s", [{"x": x} for x in range(10)])
    db.create_materialized_view(
        "v", source.search(None).select({"x": "x", "y": log.doubling()}), auto_refresh=True
    )
    agent, other = (db.agent(allow=["v"], max_calls=100) for _ in range(2))
    assert statuses(agent.run_once()) == {"v": "done"} and len(log.rows()) == 10
    for each in (agent, other):
        each._ledger.note_history(db.open_table("v").list_jobs())
        assert each._ledger.remaining().calls == 90


def test_the_cost_of_a_chunker_counts_once_and_estimates_the_next_refresh(db: Connection):
    source = db.create_table("s", [{"x": x} for x in range(10)])
    view = db.create_udtf_view("v", source.search(None).select(["x"]), halves, auto_refresh=True)
    agent, other = (db.agent(allow=["v"], max_cost=100.0) for _ in range(2))
    (step,) = agent.run_once().steps
    assert step.result.cost == view.list_jobs()[-1].cost == 2.5
    for each in (agent, other):
        each._ledger.note_history(view.list_jobs())
        assert each._ledger.remaining().cost == 97.5
    append(source, *range(100, 110))
    (step,) = other.plan().steps
    assert (step.rows, step.estimated_cost) == (10, 2.5)
    assert statuses(db.agent(allow=["v"], max_cost=2.5).run_once()) == {"v": "waiting"}


def test_a_job_that_fails_with_any_error_has_spent_its_cost(db: Connection, log: Log, flag: str):
    policy = skip_on_error(max_skip_count=0)
    with_column(
        db,
        log.breaking(3, flag, auto_backfill=True, on_error=policy, cost=1.0),
        rows=10,
        fragments=1,
    )
    source = (
        db.open_table("t")
        .search(None)
        .select({"x": "x", "y": log.breaking(3, flag, on_error=policy, cost=1.0)})
    )
    view = db.create_materialized_view("v", source, auto_refresh=True)
    Path(flag).touch()
    agent = db.agent(allow=["*"], max_cost=100.0)
    assert statuses(agent.run_once()) == {"t.y": "failed", "v": "failed"}
    spent = len(log.lines())
    assert spent == 8 and agent._ledger.remaining().cost == 100 - spent
    other = db.agent(allow=["*"], max_cost=100.0)
    for table in (db.open_table("t"), view):
        other._ledger.note_history(table.list_jobs())
    assert other._ledger.remaining().cost == 100 - spent


def test_a_killed_refresh_counts_with_its_backfills_and_a_refresh_of_an_earlier_release_with_their_cost():
    job_id, moment = f"{ledger.JOB_PREFIX}{'0' * 32}", datetime.now(UTC)
    refresh = job_record(
        job_id,
        job_type="refresh",
        rows_computed=7,
        cost=7.0,
        launched_at=moment - timedelta(minutes=1),
    )
    first = job_record(
        f"{job_id}-0", rows_computed=4, rows_skipped=1, cost=5.0, completed_at=moment
    )
    second = job_record(
        f"{job_id}-1", rows_computed=3, cost=3.0, launched_at=moment - timedelta(seconds=9)
    )
    ((_, spent),) = ledger.sum_jobs([second, first, refresh]).values()
    assert (spent.calls, spent.cost, round(spent.seconds)) == (11, 10.0, 60)
    ended = dataclasses.replace(refresh, completed_at=moment, seconds={"total": 4.0})
    ((_, spent),) = ledger.sum_jobs([second, first, ended]).values()
    assert (spent.calls, spent.cost) == (8, 8.0)
    ((_, spent),) = ledger.sum_jobs([first, dataclasses.replace(ended, cost=0.0)]).values()
    assert spent == Spending(calls=8, seconds=4.0, cost=5.0)


def test_each_job_gets_a_share_of_the_rest_of_the_budget(agent: Agent):
    settings = dataclasses.replace(agent._settings, max_calls=10, max_cost=6.0, max_seconds=8.0)
    book = ledger.Ledger(settings)
    assert book.reserve("a", 2) == Spending(calls=5, seconds=4.0, cost=3.0)
    assert book.reserve("b", 1) == Spending(calls=5, seconds=4.0, cost=3.0)
    assert book.remaining().is_nothing
    book.release("b")
    assert book.remaining() == Spending(calls=5, seconds=4.0, cost=3.0)


def test_a_failing_column_waits_longer_and_longer_and_holds_what_reads_it(
    db: Connection, log: Log, flag: str
):
    table = with_column(db, log.breaking(3, flag, auto_backfill=True), rows=10, fragments=1)
    table.add_columns({"a": quadruple}, auto_backfill=True)
    other = with_column(db, log.doubling(auto_backfill=True), rows=10, fragments=1, name="u")
    Path(flag).touch()
    agent = db.agent(allow=["*"], trigger=timedelta(minutes=1))
    assert statuses(agent.run_once()) == {"t.y": "failed", "t.a": "waiting", "u.y": "done"}
    assert values(other) == doubled(range(10))
    first, held = agent.plan().steps
    assert (first.status, held.status) == (
        "waiting",
        "waiting",
    ) and "The job failed 1 times" in str(first.reason)
    _, wait_s = agent._ledger.backoff(first.key)
    agent._ledger.note_failure(first.key)
    assert agent._ledger.backoff(first.key)[1] == pytest.approx(2 * wait_s, rel=0.1)
    Path(flag).unlink()
    agent._ledger.note_success(first.key)
    assert statuses(agent.run_once()) == {"t.y": "done", "t.a": "done"}


@pytest.mark.long
def test_at_most_so_many_jobs_run_at_once(db: Connection, log: Log, flag: str):
    for name in ("a", "b", "c"):
        with_column(db, log.waiting(0, flag, auto_backfill=True), rows=2, fragments=1, name=name)
    plans: list[AgentPlan] = []
    thread = threading.Thread(
        target=lambda: plans.append(db.agent(allow=["*"], max_jobs=2).run_once())
    )
    with flag_file(flag):
        thread.start()
        eventually(lambda: len(log.rows()) == 2)
        time.sleep(0.2)
        assert log.rows() == [0, 0]
    thread.join(60)
    assert statuses(plans[0]) == {"a.y": "done", "b.y": "done", "c.y": "done"}


def test_an_unreadable_table_leaves_other_tables_alone(db: Connection, table: Table, agent: Agent):
    (Path(db.uri) / "broken.lance" / "_versions").mkdir(parents=True)
    (Path(db.uri) / "broken.lance" / "_versions" / "1.manifest").write_bytes(b"no manifest")
    plan = agent.run_once()
    assert statuses(plan) == {"broken": "failed", "t.y": "done", "t.a": "done"}


def test_skipped_rows_are_tried_again_only_after_a_change(db: Connection, log: Log, flag: str):
    table = with_column(
        db,
        log.breaking(3, flag, auto_backfill=True, on_error=skip_on_error()),
        rows=10,
        fragments=1,
    )
    Path(flag).touch()
    agent = db.agent(allow=["*"])
    assert statuses(agent.run_once()) == {"t.y": "done"}
    calls = len(log.lines())
    assert agent._planner.plan_changes().steps == ()
    append(table, 77)
    assert statuses(agent._planner.plan_changes()) == {
        "t.y": "waiting"
    }  # a moment after the commit
    agent.run_once()
    assert sorted(map(int, log.lines()[calls:])) == [3, 77]


def test_a_refresh_that_only_skips_rows_again_changes_nothing(db: Connection, flag: str):
    def split(x: int) -> Iterator[Half]:
        if x == 3 and Path(flag).exists():
            raise ValueError
        yield Half(x)

    query = make(db, rows=4, fragments=1).search(None).select(["x"])
    chunks = chunker(split, on_error=skip_on_error())
    view = db.create_udtf_view("v", query, chunks, auto_refresh=True)
    agent = db.agent(allow=["*"], debounce=timedelta(0))
    with flag_file(flag):
        assert statuses(agent.run_once()) == {"v": "done"}
        version = view.version
        # The configuration of the view is a commit, too.
        (step,) = agent.run_once().steps
        assert (step.result.rows_skipped, view.version) == (1, version)
        assert agent._planner.plan_changes().steps == ()
    assert view.refresh().rows_added == 1 and view.refresh().rows_chunked == 0


def test_a_restore_to_rows_without_their_note_is_noted(
    db: Connection, flag: str, monkeypatch: pytest.MonkeyPatch
):
    def split(x: int) -> Iterator[Half]:
        if x == 3 and Path(flag).exists():
            raise ValueError
        yield Half(x)

    table = make(db, rows=4, fragments=1)
    query = table.search(None).select(["x"])
    view = db.create_udtf_view("v", query, chunker(split, on_error=skip_on_error()))
    with flag_file(flag):
        view.refresh()
        table.add([{"x": 10}])
        with monkeypatch.context() as death:
            death.setattr(RefreshJob, "_note", lambda *_: (_ for _ in ()).throw(OSError("gone")))
            with pytest.raises(Exception, match="gone"):
                view.refresh()
        view.restore(view.version)
        view.refresh()
    noted = Refreshed.from_json(view.to_lance().config()[CONFIG_KEY], view.uri)
    assert noted.version == table.version


def test_a_look_at_tables_without_changes_costs_few_requests(
    db: Connection, table: Table, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    agent.run_once()
    opened: list[str] = []
    latest = type(table._latest).open_latest
    monkeypatch.setattr(
        type(table._latest), "open_latest", lambda self: opened.append(self.uri) or latest(self)
    )
    monkeypatch.setattr(planner._QuickJudge, "judge", lambda *_: pytest.fail("nothing has changed"))
    assert agent._planner.plan_changes().steps == ()
    assert opened == [table.uri]


def test_small_commits_wait_for_each_other_and_a_steady_writer_delays_no_more(
    db: Connection, table: Table, monkeypatch: pytest.MonkeyPatch
):
    agent = db.agent(allow=["t"], debounce=timedelta(seconds=30))
    plan = agent._planner.plan_changes()
    assert statuses(plan) == {
        "t.y": "waiting",
        "t.a": "waiting",
    } and "more commits may follow" in str(plan.steps[0].reason)
    assert statuses(agent.plan()) == {"t.y": "due", "t.a": "due"}
    now = planner.time.time()
    monkeypatch.setattr(planner.time, "time", lambda: now + 31)
    assert statuses(agent._planner.plan_changes()) == {"t.y": "due", "t.a": "due"}
    append(table, 77)
    monkeypatch.setattr(planner.time, "time", lambda: now + 5)
    assert statuses(agent._planner.plan_changes()) == {"t.y": "waiting", "t.a": "waiting"}
    monkeypatch.setattr(planner, "_MOST_DEBOUNCES", 0)
    assert statuses(agent._planner.plan_changes()) == {"t.y": "due", "t.a": "due"}


@contextlib.contextmanager
def run_in_thread(agent: Agent) -> Iterator[Agent]:
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def running(agent: Agent) -> Iterator[Agent]:
    with run_in_thread(agent):
        yield agent


@pytest.mark.guarantee("W01")
def test_an_agent_keeps_columns_up_to_date_until_it_is_stopped(
    table: Table, running: Agent, log: Log
):
    eventually(lambda: values(table, "a") == {x: 4 * x for x in range(20)}, 60)
    append(table, 200, 201)
    eventually(lambda: values(table, "a") == {x: 4 * x for x in [*range(20), 200, 201]}, 60)
    assert log.rows() == [*range(20), 200, 201]


def test_steps_start_however_short_the_time_between_looks_is(db: Connection, table: Table):
    agent = db.agent(allow=["*"], trigger=timedelta(microseconds=1), debounce=timedelta(0))
    with run_in_thread(agent):
        eventually(lambda: None not in values(table).values(), 20)


def test_a_commit_during_each_job_delays_no_later_step_forever(db: Connection, log: Log):
    table = make(db, rows=20, fragments=2)
    uri = table.uri

    def double(x: int) -> int:
        if x >= 19:
            lance.write_dataset(pa.table({"x": [x + 1]}), uri, mode="append")
        return 2 * x

    table.add_columns({"y": udf(double)}, auto_backfill=True)
    table.add_columns({"a": triple}, auto_backfill=True)
    table.add_columns({"s": total}, auto_backfill=True)
    later = with_column(db, log.doubling(auto_backfill=True), rows=2, fragments=1, name="u")
    # Any job is longer than the time between looks.
    agent = db.agent(allow=["*"], debounce=timedelta(0), trigger=timedelta(milliseconds=1))
    with run_in_thread(agent):
        eventually(lambda: table.count_rows("s = 8 * x") >= 20, 60)
        eventually(lambda: values(later) == doubled(range(2)), 60)


@pytest.mark.parametrize(
    ("compacted_rows", "filled"), [(0, range(20)), (10, range(10)), (100, range(0))]
)
def test_a_column_gets_no_call_for_rows_that_arrive_during_the_job_of_its_input(
    table: Table, agent: Agent, compacted_rows: int, filled: range
):
    uri = table.uri

    def double(x: int) -> int:
        if x == 19:
            dataset = lance.write_dataset(pa.table({"x": [100]}), uri, mode="append")
            if compacted_rows:
                # Only the second fragment needs a compaction for its deletions.
                dataset.delete("x IN (11, 12)")
                dataset.optimize.compact_files(target_rows_per_fragment=compacted_rows)
        return 2 * x

    table.alter_columns({"path": "y", "udf": udf(double)})
    # The UDF of `a` fails for NULL.
    assert statuses(agent.run_once()) == {"t.y": "done", "t.a": "done" if filled else "waiting"}
    rows = values(table)
    assert values(table, "a") == {x: 4 * x if x in filled else None for x in rows}
    y, a = agent.run_once().steps
    assert (y.result.rows_computed, a.result.rows_computed) == (1, len(rows) - len(filled))
    assert values(table, "a") == {x: 4 * x for x in rows} and agent.run_once().steps == ()


def test_a_step_with_a_new_input_since_the_look_waits_for_the_next_look(
    table: Table, agent: Agent, log: Log, flag: str
):
    def add(y: int, z: int) -> int:
        return y + z

    table.alter_columns({"path": "y", "udf": log.waiting(5, flag, version="waits")})
    plans: list[AgentPlan] = []
    thread = threading.Thread(target=lambda: plans.append(agent.run_once()))
    with flag_file(flag):
        thread.start()
        eventually(lambda: 5 in log.rows(), 60)
        table.add_columns({"z": (triple, ["x"])}, auto_backfill=True)
        table.alter_columns({"path": "a", "udf": udf(add)})
    thread.join(60)
    assert statuses(plans[0]) == {"t.y": "done", "t.a": "waiting"}
    assert "other inputs" in str(plans[0].steps[1].reason)
    assert values(table, "a") == dict.fromkeys(range(20))
    assert statuses(agent.run_once()) == {"t.z": "done", "t.a": "done"}
    assert values(table, "a") == {x: 5 * x for x in range(20)}


def test_a_waiting_step_delays_no_repetition_of_its_inputs(db: Connection, log: Log, flag: str):
    table = make(db, rows=20, fragments=2)
    table.add_columns({"a": log.waiting(5, flag)}, auto_backfill=True)
    table.add_columns({"y": log.doubling()}, auto_backfill=True)
    table.add_columns({"s": total}, auto_backfill=True)
    agent = db.agent(allow=["*"], max_jobs=2, debounce=timedelta(0), trigger=SOON)
    with flag_file(flag), run_in_thread(agent):
        eventually(lambda: values(table) == doubled(range(20)), 60)
        append(table, 100)
        # The job of `a` still runs, and the step of `s` waits for it.
        eventually(lambda: values(table)[100] == 200, 10)
        Path(flag).unlink()
        eventually(lambda: values(table, "s") == {x: 4 * x for x in [*range(20), 100]}, 60)


def advance(agent: Agent, until: Callable[[], bool]) -> None:
    """Starts and ends the steps of the last look."""
    eventually(lambda: agent._advance(0.1) is None or until(), 60)


@pytest.mark.long
def test_a_waiting_step_waits_for_a_new_input(db: Connection, log: Log, flag: str, tmp_path: Path):
    second_flag = str(tmp_path / "second flag")

    def add(y: int, a: int) -> int:
        return y + a

    table = make(db, rows=20, fragments=2)
    table.add_columns({"a": log.waiting(5, flag)}, auto_backfill=True)
    table.add_columns({"s": (triple, ["a"])}, auto_backfill=True)
    agent = db.agent(allow=["*"], max_jobs=2, debounce=timedelta(0))
    with flag_file(flag), flag_file(second_flag):
        agent._look()
        advance(agent, lambda: log.rows().count(5) == 1)
        table.add_columns({"y": log.waiting(5, second_flag)}, auto_backfill=True)
        table.alter_columns({"path": "s", "udf": udf(add)})
        agent._look()
        advance(agent, lambda: log.rows().count(5) == 2)
        Path(flag).unlink()
        advance(agent, lambda: len(agent._running) == 1)
        agent._advance(0.1)
        assert [step.step.columns for step in agent._running.values()] == [("y",)]
        Path(second_flag).unlink()
        advance(agent, lambda: not agent._pending and not agent._running)
    assert values(table, "s") == {x: 4 * x for x in range(20)}


@pytest.mark.long
def test_a_change_of_a_step_during_a_long_job_counts_before_the_step_starts(
    db: Connection, log: Log, flag: str
):
    def add(y: int, a: int) -> int:
        return y + a

    table = make(db, rows=20, fragments=2)
    table.add_columns({"a": log.waiting(5, flag)}, auto_backfill=True)
    table.add_columns({"s": (triple, ["a"])}, auto_backfill=True)
    settings = {"trigger": timedelta(seconds=0.3), "debounce": timedelta(0)}
    with flag_file(flag), run_in_thread(db.agent(allow=["*"], max_jobs=1, **settings)):
        eventually(lambda: 5 in log.rows())
        table.add_columns({"y": (triple, ["x"])}, auto_backfill=True)
        table.alter_columns({"path": "s", "udf": udf(add)})
        time.sleep(0.5)  # the time of the next look has come
        Path(flag).unlink()
        eventually(lambda: values(table, "s")[19] is not None)
    assert values(table, "s") == {x: 5 * x for x in range(20)}
    assert {job.status for job in table.list_jobs()} == {"DONE"}


@pytest.mark.long
def test_a_step_that_starts_before_a_repetition_of_its_input_ends_is_due_again(
    db: Connection, log: Log, flag: str, tmp_path: Path
):
    second_flag = str(tmp_path / "second flag")
    table = make(db, rows=20, fragments=2)
    table.add_columns({"a": log.waiting(5, flag)}, auto_backfill=True)
    table.add_columns({"y": (triple, ["x"])}, auto_backfill=True)
    table.add_columns({"s": total}, auto_backfill=True)
    agent = db.agent(allow=["*"], max_jobs=2, debounce=timedelta(0))
    with flag_file(flag), flag_file(second_flag):
        agent._look()
        advance(agent, lambda: values(table)[19] == 57 and len(agent._running) == 1)
        Path(flag).unlink()
        # The next look is sooner than the agent notes the end of the job.
        next(iter(agent._running.values())).job.result()
        table.alter_columns({"path": "y", "udf": log.waiting(5, second_flag)})
        agent._look()
        advance(agent, lambda: values(table, "s")[19] is not None and len(agent._running) == 1)
        assert values(table, "s") == {x: 5 * x for x in range(20)}
        Path(second_flag).unlink()
        advance(agent, lambda: not agent._running)
    agent._look()
    advance(agent, lambda: not agent._pending and not agent._running)
    assert values(table, "s") == {x: 4 * x for x in range(20)}


@pytest.mark.parametrize("agent", [2], indirect=True)
def test_a_commit_during_a_job_is_not_forgotten(table: Table, running: Agent, log: Log, flag: str):
    eventually(lambda: values(table, "a") == {x: 4 * x for x in range(20)}, 60)
    planned = running._planner._memories
    with flag_file(flag):
        table.alter_columns({"path": "y", "udf": log.waiting(5, flag, version="waits")})
        eventually(lambda: log.rows().count(5) == 2, 60)
        append(table, 300)
        appended = table.version
        # The agent looks at the new version while the job of the version before runs.
        eventually(lambda: planned[table.uri].version[0] >= appended, 60)
    eventually(lambda: values(table, "a") == {x: 4 * x for x in [*range(20), 300]}, 10)
    # The UDF of `a` fails for NULL.
    assert "FAILED" not in {job.status for job in table.list_jobs()}


def test_a_stopped_agent_cancels_its_jobs_and_leaves_nothing_behind(
    table: Table, agent: Agent, log: Log, flag: str, monkeypatch: pytest.MonkeyPatch
):
    cancelled: list[str] = []
    monkeypatch.setattr(Job, "cancel", lambda job: cancelled.append(job.job_id))
    table.alter_columns({"path": "y", "udf": log.waiting(15, flag)})
    Path(flag).touch()
    plans: list[AgentPlan] = []
    thread = threading.Thread(target=lambda: plans.append(agent.run_once()))
    thread.start()
    eventually(lambda: 15 in log.rows(), 60)
    agent.stop()
    eventually(lambda: bool(cancelled), 60)
    Path(flag).unlink()
    thread.join(60)
    assert set(cancelled) == {table.list_jobs()[0].job_id}
    assert statuses(plans[0])["t.a"] == "waiting" and agent._leases == {}
    assert lease._find_holder(lance.dataset(f"{table.uri}/_lance_spark/jobs.lance").config()) == ""


def other_process(ref: object, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """Takes a lease as an agent of another machine does."""
    process = lease.json.dumps({"host": "elsewhere", "pid": 7, "started": "1"})
    with monkeypatch.context() as patches:
        patches.setattr(lease, "this_process", lambda: process)
        other = Lease(ref, "other")  # type: ignore[arg-type]
        assert other._write(until=lease.time.time() + lease.LEASE_S)
    return other


@pytest.mark.guarantee("W04")
def test_one_of_two_agents_works_on_a_table(
    db: Connection, table: Table, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    other_process(table._latest, monkeypatch)
    plan = agent.run_once()
    assert statuses(plan) == {"t.y": "waiting", "t.a": "waiting"}
    assert plan.steps[0].reason == "The agent in process 7 of elsewhere works on the table"
    # After its time the lease is taken over.
    now = lease.time.time()
    monkeypatch.setattr(lease.time, "time", lambda: now + lease.LEASE_S + 1)
    assert statuses(agent.run_once()) == {"t.y": "done", "t.a": "done"}


def test_of_two_agents_that_take_a_lease_at_once_one_wins(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    mine = Lease(table._latest, "mine")
    write = lease.change_config

    def race(ref: object, table_: object, change: object) -> None:
        def change_after_the_other(head: lance.LanceDataset) -> object:
            values = change(head)  # type: ignore[operator]
            if lease.change_config is race:
                monkeypatch.setattr(lease, "change_config", write)
                other_process(ref, monkeypatch)
            return values

        write(ref, table_, change_after_the_other)  # type: ignore[arg-type]

    monkeypatch.setattr(lease, "change_config", race)
    assert not mine.take() and mine.holder == "process 7 of elsewhere"


@pytest.mark.parametrize(
    "forged", ["{", '{"owner": 1}', '{"owner": "o", "process": "x", "until": 1e18}', "[]"]
)
def test_a_forged_lease_holds_nothing(forged: str):
    assert lease._find_holder({lease.LEASE_KEY: forged}) == ""
    process = '{\\"host\\": \\"h\\", \\"pid\\": 7, \\"started\\": \\"1\\"}'
    assert (
        lease._find_holder(
            {lease.LEASE_KEY: f'{{"owner": "o", "process": "{process}", "until": 1e18}}'}
        )
        == ""
    )


def look_of(name: str, uri: str, **changes: Any) -> looks.TableLook:
    table: Any = SimpleNamespace(ref=SimpleNamespace(uri=uri), list_jobs=list)
    values = {"groups": {}, "foreign": frozenset(), "view": None, "source_uri": None, **changes}
    return looks.TableLook(
        name=name, table=table, version=(1, "a"), committed_at=datetime.now(UTC), **values
    )


def test_a_view_with_the_name_of_a_column_of_its_source_waits_for_the_column_and_not_for_itself():
    table = look_of("docs", "/docs", groups={("x",): frozenset()})
    (column,) = planner._candidates(table, table.groups, ())
    view: Any = SimpleNamespace(used=[SimpleNamespace(name="x")])
    look = look_of("docs.x", "/docs.x", view=view, source_uri="/docs")
    (refresh,) = planner._candidates(look, {}, [column])
    assert refresh.name == column.name == "docs.x"
    assert refresh.key != column.key and refresh.after_keys == (column.key,)


def test_steps_that_wait_for_each_other_end_without_a_job(agent: Agent):
    first, second = (
        AgentStep(table_name=name, table_uri=name, action="refresh") for name in ("a", "b")
    )
    steps = (
        dataclasses.replace(first, after_keys=(second.key,)),
        dataclasses.replace(second, after_keys=(first.key,)),
    )
    agent._pending = {step.key: _PendingStep(step, last_fragment=0) for step in steps}
    assert [step.status for step in agent._advance(0)] == [
        "waiting",
        "waiting",
    ] and not agent._pending


def test_a_pattern_of_a_namespace_allows_no_table_outside_of_the_namespace(agent: Agent):
    settings = dataclasses.replace(agent._settings, allow=("shop.*",), claim=("a.b.c",))
    assert settings.allows(join_names(["shop", "evil"])) and not settings.allows(
        join_names(["shop.evil"])
    )
    assert dataclasses.replace(settings, allow=("`shop.evil`",)).allows(join_names(["shop.evil"]))
    paths = [
        ("a", "b", "c"),
        ("a.b", "c"),
        ("a", "b.c"),
        ("a.b.c",),
        ("`a`", "b.c"),
        ("a`.`b", "c"),
    ]
    assert len({join_names(path) for path in paths}) == len(paths)
    assert [settings.claims([join_names(path)]) for path in paths] == [True, *[False] * 5]


def test_a_plan_names_a_table_with_a_dot_as_patterns_do(db: Connection):
    db.create_table("shop.evil", [{"x": 1}]).add_columns(
        {"y": (quadruple, ["x"])}, auto_backfill=True
    )
    assert statuses(db.agent(allow=["shop.*"]).plan()) == {"`shop.evil`.y": "not allowed"}
    assert statuses(db.agent(allow=["`shop.evil`"]).plan()) == {"`shop.evil`.y": "due"}


def test_the_end_of_a_job_of_another_agent_counts_and_own_jobs_count_once(agent: Agent):
    book = ledger.Ledger(dataclasses.replace(agent._settings, max_calls=100))
    other = f"{ledger.JOB_PREFIX}{'0' * 32}"
    book.note_history([job_record(other, status="RUNNING")])
    book.note_history([job_record(other, rows_computed=30)])
    assert book.remaining().calls == 70
    own = f"{ledger.JOB_PREFIX}{'1' * 32}"
    book.reserve(own, 1)
    result: Any = SimpleNamespace(
        rows_computed=3, rows_skipped=2, seconds={}, backfills={}, cost=0.0
    )
    book.note_end(own, result)
    book.note_history([job_record(own, rows_computed=1)])
    assert book.remaining().calls == 65


def test_columns_come_after_their_inputs_in_little_time_and_cycles_end():
    count = 20_000
    chain = {(str(n),): frozenset({(str(n + 1),)} if n + 1 < count else ()) for n in range(count)}
    began = time.monotonic()
    assert list(looks.sort_groups(chain)) == list(reversed(chain))
    assert time.monotonic() - began < 5
    a, b, c = ("a",), ("b",), ("c",)
    ordered = looks.sort_groups({a: frozenset({b}), b: frozenset({a, c}), c: frozenset()})
    assert ordered == {c: frozenset(), a: frozenset(), b: frozenset({a, c})}


def test_columns_of_a_table_that_is_not_allowed_are_not_sorted(
    db: Connection, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(planner, "sort_groups", lambda _: pytest.fail("the table is not allowed"))
    assert statuses(db.agent().plan()) == {"t.y": "not allowed", "t.a": "not allowed"}


def test_two_agents_of_a_process_share_no_lease(db: Connection, table: Table, agent: Agent):
    assert not agent._take_lease(agent._planner.source.open_table(("t",)))
    other = db.agent(allow=["t"])
    assert "works on the table" in str(other.run_once().steps[0].reason)
    agent._release_leases()
    assert not other._take_lease(other._planner.source.open_table(("t",)))
    other._release_leases()


def test_a_dropped_table_is_forgotten_and_its_step_fails_with_an_error_of_its_own(
    db: Connection, table: Table, agent: Agent
):
    (y, _) = agent.plan().steps
    agent._ledger.note_failure(y.key)
    agent._planner._unsettled_since[table.uri] = 1.0
    planned = agent._planner.planned_version(y)
    db.drop_table("t")
    assert agent.plan().steps == ()
    known = agent._planner
    assert not (
        known._tables or known._memories or known._unsettled_since or agent._ledger._failures
    )
    known.note_done(y, planned, is_complete=True)  # the job ended after the drop
    assert agent._start(_PendingStep(y, last_fragment=0))[0].status == "failed"
    with pytest.raises(TableNotFoundError):
        known.table_of(y)


@pytest.mark.long
@pytest.mark.guarantee("W01")
def test_a_refresh_counts_for_the_budget_and_views_follow_their_source(
    db: Connection, log: Log, spark: Any
):
    table = make(db, rows=20, fragments=2)
    table.add_columns({"y": log.doubling()}, auto_backfill=True)
    view = db.create_materialized_view(
        "v", table.search(None).select(["x", "y"]).where("y > 10"), auto_refresh=True
    )
    view.add_columns({"z": (quadruple, ["y"])}, auto_backfill=True)
    agent = db.agent(allow=["*"], max_calls=25)
    assert statuses(agent.run_once()) == {"t.y": "done", "v": "done", "v.z": "waiting"}
    assert sum(job.rows_computed for job in (*table.list_jobs(), *view.list_jobs())) == 25
    agent = db.agent(allow=["*"])
    assert statuses(agent.run_once()) == {"v.z": "done"}
    assert values(view, "z") == {x: 4 * x for x in range(6, 20)}
    append(table, 30)
    assert statuses(agent.run_once()) == {"t.y": "done", "v": "done", "v.z": "done"}
    assert values(view, "z")[30] == 120
    assert agent.run_once().steps == ()
    assert agent.plan().steps == ()
    assert [job.job_id.startswith(ledger.JOB_PREFIX) for job in view.list_jobs()] == [True] * 5


_ON_SPARK = (pytest.mark.long, pytest.mark.spark)


@pytest.mark.guarantee("W03")
@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("chunks", "max_cost"),
        pytest.param("chunks", "max_calls", marks=_ON_SPARK),
        pytest.param("columns", "max_cost", marks=_ON_SPARK),
        pytest.param("columns", "max_calls", marks=_ON_SPARK),
    ],
)
def test_a_refresh_ends_at_its_share_of_the_budget_and_the_next_refresh_continues(
    db: Connection,
    jobs: Any,
    log: Log,
    kind: str,
    limit: str,
    capsys: pytest.CaptureFixture[str],
):
    db = connect(db.uri, jobs, progress=True)
    agent: Any = functools.partial(db.agent, allow=["*"])
    query, path = make(db, rows=20, fragments=2).search(None), log.path

    def split(x: int) -> Iterator[Half]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        yield from (Half(x), Half(-x))

    if kind == "chunks":
        view = db.create_udtf_view(
            "v", query.select(["x"]), chunker(split, cost=1.0), auto_refresh=True
        )
    else:
        columns = {"x": "x", "y": log.doubling(cost=1.0), "z": log.doubling(factor=3, cost=1.0)}
        view = db.create_materialized_view("v", query.select(columns), auto_refresh=True)
    rows, calls = (40, [*range(20)]) if kind == "chunks" else (20, [*range(20)] * 2)
    (step,) = agent(**{limit: 8}).run_once().steps
    assert (step.status, step.result.status) == ("waiting", "PARTIAL") and "The budget" in str(
        step.reason
    )
    assert len(log.rows()) == 8 and view.list_jobs()[-1].status == "PARTIAL"
    assert "8 of 20 rows computed PARTIAL" in capsys.readouterr().err
    assert view.count_rows() == (0 if kind == "chunks" else 20)
    assert statuses(agent(**{limit: 8}).run_once()) == {"v": "waiting"} and len(log.rows()) == 8
    assert statuses(agent(**{limit: 15}).run_once()) == {"v": "waiting"} and len(log.rows()) == 15
    assert statuses(agent(**{limit: 60}).run_once()) == {"v": "done"}
    assert log.rows() == sorted(calls) and view.count_rows("y IS NOT NULL") == rows
    assert db.agent(allow=["*"]).run_once().steps == ()
    # Tasks of a chunker write reports next to the heartbeat.
    assert not [*Path(view.uri, "_lance_spark/jobs").rglob("*")]


@pytest.mark.long
def test_many_unfinished_refreshes_with_compactions_call_a_chunker_once_for_each_row(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(calls, "MOST_BASES", 2)
    monkeypatch.setattr(calls, "_SPARE_BASES", 0)
    table, path = make(db, rows=20, fragments=2), log.path

    def split(x: int) -> Iterator[Half]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        yield from (Half(x), Half(-x))

    query = table.search(None).select(["x"])
    function = chunker(split, min_checkpoint_size=1, checkpoint_size=1, task_size=99)
    view = db.create_udtf_view("v", query, function, auto_refresh=True)
    # The third refresh has the most older versions, and a checkpoint with all moved rows.
    for budget, status, checkpoints in (
        (8, "waiting", 8),
        (12, "waiting", 12),
        (16, "waiting", 17),
        (40, "done", 0),
    ):
        assert statuses(db.agent(allow=["*"], max_calls=budget).run_once()) == {"v": status}
        assert len([*Path(view.uri).rglob("*.rows")]) == checkpoints
        append(table, 100 + budget)
        table.to_lance().optimize.compact_files()
    assert log.rows() == [*range(20), 108, 112, 116] and view.count_rows() == 46


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.guarantee("W03")
def test_moved_rows_of_a_chunker_are_no_calls_of_a_dead_attempt(
    db: Connection, log: Log, flag: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(calls, "MOST_BASES", 1)
    monkeypatch.setattr(calls, "_SPARE_BASES", 0)
    table, path = make(db, rows=20, fragments=1), log.path

    def split(x: int) -> Iterator[Half]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        if os.path.exists(flag) and len(Path(path).read_text().split()) == 12:
            os.unlink(flag)
            os.kill(os.getpid(), signal.SIGKILL)
        yield from (Half(x), Half(-x))

    query = table.search(None).select(["x"])
    function = chunker(split, cost=1.0, min_checkpoint_size=1, checkpoint_size=1, task_size=99)
    db.create_udtf_view("v", query, function, auto_refresh=True)
    assert statuses(db.agent(allow=["*"], max_calls=8).run_once()) == {"v": "waiting"}
    append(table, 100)
    table.to_lance().optimize.compact_files()
    Path(flag).touch()
    (step,) = db.agent(allow=["*"], max_calls=18).run_once().steps
    assert not Path(flag).exists(), "a task died"
    assert (step.status, step.result.cost) == ("waiting", 10) and len({*log.rows()}) >= 18


@pytest.mark.guarantee("W03")
def test_rows_skipped_by_a_policy_count_for_the_share_of_a_refresh(
    db: Connection, log: Log, flag: str
):
    columns = {
        "x": "x",
        "y": log.breaking(3, flag, on_error=skip_on_error()),
        "z": log.doubling(factor=3),
    }
    query = make(db, rows=10, fragments=1).search(None).select(columns)
    db.create_materialized_view("v", query, auto_refresh=True)
    agent = db.agent(allow=["*"], max_calls=10)
    with flag_file(flag):
        (step,) = agent.run_once().steps
    assert step.result.backfills["y"].rows_skipped == 1 and "z" not in step.result.backfills
    assert (step.result.status, len(log.lines())) == ("PARTIAL", 10)
    assert agent._ledger.remaining().calls == 0


@pytest.mark.guarantee("W03")
def test_skipped_rows_of_a_refresh_that_lost_its_commit_count_for_the_budget(
    db: Connection, log: Log, flag: str, monkeypatch: pytest.MonkeyPatch
):
    path, commit = log.path, refresh.commit_replaced

    def split(x: int) -> Iterator[Half]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        if x == 3 and Path(flag).exists():
            raise ValueError
        yield Half(x)

    def lose(*_: object, **__: object) -> None:
        monkeypatch.setattr(refresh, "commit_replaced", commit)
        raise CommitConflictError("A concurrent writer committed first.", uri="v")

    query = make(db, rows=10, fragments=1).search(None).select(["x"])
    db.create_udtf_view("v", query, chunker(split, on_error=skip_on_error()), auto_refresh=True)
    monkeypatch.setattr(refresh, "commit_replaced", lose)
    agent, other = (db.agent(allow=["*"], max_calls=100) for _ in range(2))
    with flag_file(flag):
        (step,) = agent.run_once().steps
    assert (step.status, step.result.rows_skipped) == ("done", 2)
    assert log.rows() == sorted([*range(10), 3])
    other.plan()
    assert agent._ledger.remaining().calls == other._ledger.remaining().calls == 89


def test_a_plan_counts_the_values_that_an_unfinished_refresh_has_left(db: Connection, log: Log):
    columns = {"x": "x", "y": log.doubling(cost=1.0), "z": log.doubling(factor=3, cost=1.0)}
    query = make(db, rows=10, fragments=1).search(None).select(columns)
    db.create_materialized_view("v", query, auto_refresh=True)
    assert statuses(db.agent(allow=["*"], max_calls=10).run_once()) == {"v": "waiting"}
    (step,) = db.agent(allow=["*"]).plan().steps
    assert (step.rows, step.estimated_cost) == (10, 10.0) and step.estimated_seconds > 0


@pytest.mark.parametrize(
    "setting",
    [
        {"max_jobs": 0},
        {"max_cost": -1.0},
        {"max_seconds": float("nan")},
        {"trigger": timedelta(0)},
        {"allow": [""]},
    ],
)
def test_wrong_settings_are_refused(db: Connection, setting: dict[str, object]):
    with pytest.raises(OptionError, match=next(iter(setting))):
        db.agent(**setting)  # type: ignore[arg-type]


def test_the_command_shows_the_plan_and_refuses_a_wrong_place(
    db: Connection, table: Table, capsys: pytest.CaptureFixture[str]
):
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["agent", *arguments])
        return int(ended.value.code or 0), capsys.readouterr().out

    code, out = run("--root", db.uri, "--allow", "t", "--dry-run", "--json")
    assert code == 0 and [step["columns"] for step in json.loads(out)["steps"]] == [["y"], ["a"]]
    code, out = run("--root", db.uri, "--dry-run")
    assert code == 0 and "t.y" in out and "not allowed" in out
    assert run("--root", db.uri, "--namespace", "dir")[0] == 2
    assert run("--root", db.uri, "--sample", "8")[0] == 2
