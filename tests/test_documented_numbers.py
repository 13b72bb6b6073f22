"""Numbers in pages match the code."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from lance_spark import Table
from lance_spark.backfill import request
from lance_spark.backfill.planning import fragment_plan
from lance_spark.backfill.reuse import equal_inputs
from lance_spark.backfill.task import computation
from lance_spark.jobs import history
from lance_spark.read.ranking import sort_pushdown
from lance_spark.rows import input_reader
from lance_spark.spark_jobs import failures
from udf_runtime.execute.batches import distinct
from udf_runtime.execute.calls import stream, time_limit
from udf_runtime.policies import AdaptiveSize, Backoff, Retry, batch_size

DOCS = Path(__file__).parents[1] / "docs"

DOCUMENTED = {
    "search.md": [
        f"Of n partitions n^{sort_pushdown.EFFORT} are searched",
        {10: "of ten times as many rows"}[sort_pushdown.REFINE],
        f"of up to {sort_pushdown.CHECKED_BYTES >> 20} MiB, it is looked up",
        f"the rows may take more than {sort_pushdown.FOUND_BYTES >> 20} MiB",
    ],
    "checkpoints.md": [
        f"after {computation.FLUSH_BYTES >> 20} MiB of values",
        f"persisted: {computation.FLUSH_BYTES >> 20} MiB, and a batch",
        f"ends at {input_reader.BATCH_BYTES >> 20} MiB of input",
        f"batches of input, {input_reader.BATCH_BYTES >> 20} MiB at most each",
        f"`blob_read_buffer_size` ({request.DEFAULT_BLOB_BUFFER_BYTES >> 20} MiB)",
        f"`batch_checkpoint_flush_interval_seconds` ({request.DEFAULT_FLUSH_S:g})",
        f"| `checkpoint_size` | {batch_size.DEFAULT_CHECKPOINT_ROWS:,} |",
        {8: "at most eightfold"}[batch_size.MOST_GROWTH],
        {10.0: "takes ten seconds"}[inspect.signature(AdaptiveSize).parameters["target_s"].default],
    ],
    "backfill-jobs.md": [
        f"`concurrency` ({request.DEFAULT_CONCURRENCY}) is the most tasks",
        f"`commit_granularity` ({request.DEFAULT_COMMIT_GRANULARITY}) finished",
        f"at most one large fragment and {fragment_plan.MAX_TASK_BYTES >> 20} MiB",
        f"after {history._DEAD_AFTER_S:g} seconds without a sign of life",
        f"| `refresh_status_secs` | {request.DEFAULT_REFRESH_S:g} |",
        f"the UDF's, else {batch_size.DEFAULT_CHECKPOINT_ROWS:,}, 1",
    ],
    "errors.md": [
        f"the first {computation._FULL_TRACES} failures of a range, {computation._TRACE_CHARS:,} characters",
        {4: "A task that dies four times"}[failures.MAX_ATTEMPTS],
        f"after {time_limit.MOST_HUNG_CALLS} calls that never came back",
        f"max_attempts={Retry().max_attempts},",
        f"from {Backoff().initial_s:g} s up to a bound that doubles, {Backoff().max_s:g} s at most",
    ],
    "udfs.md": [
        {4: "up to four batches ahead"}[stream.MOST_READ_AHEAD],
        f"of at most {distinct.CACHE_ROWS:,} distinct inputs, in at most {distinct.CACHE_BYTES >> 20} MiB",
        f"at most {equal_inputs._FILTER_ROWS:,} rows for {equal_inputs._MOST_KEYS:,} distinct keys",
    ],
}


@pytest.mark.parametrize("page", DOCUMENTED)
def test_numbers_in_a_page_are_those_of_the_code(page: str):
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    assert [sentence for sentence in DOCUMENTED[page] if sentence not in text] == []


def test_every_parameter_of_a_backfill_is_in_the_table_of_parameters_or_of_what_is_refused():
    text = (DOCS / "backfill-jobs.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    names = {name for row in rows for name in row.split("`")[1::2]}
    parameters = set(inspect.signature(Table.backfill).parameters) | set(
        inspect.signature(Table.backfill_async).parameters
    )
    assert parameters - {"self", "_return_future"} <= names
