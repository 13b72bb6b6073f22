"""Compactions whose driver or workers die."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark.upkeep.compaction import CompactionTask, Written
from tests.lance_spark.upkeep.small_fragments import (
    ROWS,
    TWO_IN_ONE,
    content,
    fragment_rows,
    make,
    unnamed_files,
)
from tests.support.drivers import driver

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.long
def test_after_a_kill_the_next_compaction_does_what_is_left(tmp_path: Path, spark: SparkSession):
    db = lance_spark.connect(str(tmp_path), spark, progress=False)
    table = make(db)
    before = content(table.uri)
    settings = {**TWO_IN_ONE, "commit_granularity": 1, "concurrency": 1}
    with driver(
        {"t": (tmp_path, settings)}, module="tests.support.compaction_driver", common={}
    ) as started:
        started.wait_for((tmp_path / "held").exists)
        started.kill()
    assert content(table.uri) == before and sorted(fragment_rows(table.uri)) == [10, 10, 10, 10, 20]
    leftover_files = unnamed_files(table.uri)
    assert leftover_files, "what the running jobs had written"
    result = table.compact_files(**TWO_IN_ONE)
    assert (result.fragments_removed, result.fragments_added) == (4, 2)
    assert content(table.uri) == before and fragment_rows(table.uri) == [20, 20, 20]
    # The files are younger than a week, so another writer might still commit them.
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0))
    assert unnamed_files(table.uri) == leftover_files
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert unnamed_files(table.uri) == set() and content(table.uri) == before


def test_a_worker_that_dies_takes_nothing_with_it(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    table = make(lance_spark.connect(str(tmp_path), spark, progress=False))
    flag, pieces = str(tmp_path / "died"), []

    class Deadly:
        """A task that kills its process the first time; the first task always does."""

        def __init__(self, **fields: Any) -> None:
            self.number, self.fields = fields["number"], fields
            pieces.append(self)

        def run(self) -> Written:
            if self.number == 0 or not os.path.exists(flag):
                open(flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return CompactionTask(**self.fields).run()

    monkeypatch.setattr("lance_spark.upkeep.compaction.CompactionTask", Deadly)
    with pytest.raises(
        lance_spark.UpkeepIncompleteError, match="fragment 0: its task died in 4 attempts"
    ):
        table.compact_files(**TWO_IN_ONE)
    assert sorted(fragment_rows(table.uri)) == [10, 10, 20, 20] and table.count_rows() == ROWS
