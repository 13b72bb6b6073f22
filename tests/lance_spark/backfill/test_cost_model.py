"""The model of the time and the requests of a backfill on a cluster, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_spark
from lance_spark import BackfillPlan, JobRecord
from lance_spark.backfill.planning.cost_model import Cluster, Workload, advise, estimate
from tests.support.records import job_record

WORK = st.builds(
    Workload,
    rows=st.integers(1, 10**9),
    fragments=st.integers(1, 10**6),
    table_fragments=st.integers(10**6, 2 * 10**6),
    tasks=st.integers(1, 10**5),
    input_bytes=st.floats(0, 1e13),
    output_bytes=st.floats(0, 1e13),
    commits=st.integers(1, 10**4),
    row_seconds=st.floats(0, 10),
)
CLUSTER = st.builds(Cluster, slots=st.integers(1, 10**4), latency_s=st.floats(0, 1))

PLAN = BackfillPlan(
    table_name="docs",
    table_uri="s3://bucket/docs.lance",
    version=7,
    columns=("vector",),
    udf_name="embed",
    udf_version="v2",
    where=None,
    exact=True,
    total_fragments=100_000,
    total_rows=100_000_000,
    fragments=100_000,
    total_tasks=400,
    total_rows_pending=100_000_000,
    rows_from_checkpoint=0,
    skipped_rows=0,
    skipped_fragments=0,
    rows_stale=0,
    rows_unverified=0,
    rows_outside=0,
    input_bytes=10**12,
    output_bytes=400 * 10**9,
    stable_row_ids=True,
    udf_mismatch=False,
)


def job(udf_version: str, rows: int, compute: float, udf_name: str = "embed") -> JobRecord:
    return job_record(
        "j",
        udf_name=udf_name,
        udf_version=udf_version,
        rows_computed=rows,
        seconds={"compute": compute},
    )


@given(WORK, CLUSTER)
def test_less_latency_fewer_rows_and_fewer_fragments_never_cost_more(
    work: Workload, cluster: Cluster
):
    present = estimate(work, cluster)
    assert (
        estimate(work, replace(cluster, latency_s=cluster.latency_s / 2)).seconds <= present.seconds
    )
    assert estimate(replace(work, rows=work.rows // 2), cluster).seconds <= present.seconds
    fewer = estimate(replace(work, fragments=work.fragments // 2), cluster)
    assert fewer.seconds <= present.seconds
    assert fewer.request_cost <= present.request_cost
    assert present.request_cost == pytest.approx(
        present.reads * cluster.get_price + present.writes * cluster.put_price, rel=0.05, abs=1e-5
    )


@given(WORK, CLUSTER)
def test_a_job_takes_at_least_the_calls_of_its_rows_over_all_slots(
    work: Workload, cluster: Cluster
):
    assert estimate(work, cluster).seconds >= work.rows * work.row_seconds / cluster.slots


@given(WORK, CLUSTER)
def test_each_advice_names_a_time_and_is_given_once(work: Workload, cluster: Cluster):
    sentences = advise(work, cluster, rows_of_table=work.rows)
    assert len({sentence.split()[0] for sentence in sentences}) == len(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)


def test_a_terabyte_in_100_000_fragments_on_200_slots():
    found = PLAN.estimate(
        slots=200, latency_s=0.03, jobs=[job("v2", 1_000, 0.36), job("v2", 1_000, 99.0)]
    )
    assert found.call_seconds == pytest.approx(100_000_000 * 0.00036 / 200)
    assert found.seconds > found.call_seconds
    assert found.reads > 100_000
    assert any(sentence.startswith("Compact the table first") for sentence in found.advice)
    assert found.text in str(found)


def test_without_a_job_of_this_udf_the_time_of_calls_is_unknown():
    jobs = [job("v1", 1_000, 99.0), job("v2", 0, 0.0), job("v2", 1_000, 99.0, udf_name="another")]
    found = PLAN.estimate(slots=200, latency_s=0.03, jobs=jobs)
    assert found.call_seconds is None
    assert found.text.startswith("at least ")
    assert "no job has called the UDF yet" in found.explain()


def test_too_few_tasks_and_too_many_commits_are_named():
    few_tasks = replace(PLAN, total_tasks=10, total_fragments=100, fragments=100)
    sentences = few_tasks.estimate(slots=200, latency_s=0.03, jobs=[job("v2", 1_000, 9.0)]).advice
    assert any("task_size=250000" in sentence for sentence in sentences), sentences
    huge = replace(PLAN, total_fragments=1_000_000, fragments=1_000_000)
    eager = huge.estimate(slots=200, latency_s=0.03)
    assert any("commit_granularity=None" in sentence for sentence in eager.advice), eager.advice
    assert (
        eager.commit_seconds
        > huge.estimate(slots=200, latency_s=0.03, commit_granularity=None).commit_seconds
    )


@pytest.mark.parametrize(
    ("slots", "latency_s"), [(0, 0.03), (1, -1.0), (1, float("inf")), (1, float("nan"))]
)
def test_a_cluster_without_slots_or_time_is_refused(slots: int, latency_s: float):
    with pytest.raises(lance_spark.OptionError):
        PLAN.estimate(slots=slots, latency_s=latency_s)
