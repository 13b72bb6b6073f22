"""Row ids of changed rows in results of tasks: few in each result, and few in all results together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lance_spark.dataset import DatasetRef
from lance_spark.staging.area import Staging
from lance_spark.views import row_tasks
from lance_spark.views.placement import PlacementSpec, RefreshTaskResult, RowIdSpill
from lance_spark.views.row_tasks import RowTasks

ALL = RowIdSpill._FEW_OF_ALL


def spec_at(uri: str) -> PlacementSpec:
    no_layout: Any = None
    ref = DatasetRef.at(uri)
    staging = Staging.of_new_job(ref)
    staging.open_job()
    return PlacementSpec(
        source=ref, base=None, view=ref, staging=staging, columns=(), where=None, used=(), groups=(), computed=(),
        placed=no_layout, rewrite_layout=no_layout, max_rows=10, makes_chunks=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "ids", "few"), [(1, 1024, 1), (1, 1025, 0), (ALL // 4, 4, 1), (ALL // 4, 5, 0)]
)
def test_row_ids_are_in_the_result_of_a_task_up_to_its_share(
    tasks: int, ids: int, few: int, tmp_path: Path
) -> None:
    spec, result = spec_at(str(tmp_path)), RefreshTaskResult()
    spill = RowIdSpill(spec.staging, tasks=tasks)
    spill.add(np.arange(ids), np.zeros(ids, dtype=np.int64))
    spill.close(result)
    assert (len(result.few_spilled), len(result.spills), result.spilled) == (few, 1 - few, ids)


@pytest.mark.parametrize("job", [RowTasks.write_new, RowTasks.spill_deleted])
def test_each_task_knows_the_number_of_tasks(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Jobs:
        def results(self, tasks: list[Any], _: object) -> list[RefreshTaskResult]:
            numbers.extend(task.spec.tasks for task in tasks)
            return []

    numbers: list[int] = []
    jobs: Any = Jobs()
    session: Any = None
    monkeypatch.setattr(row_tasks, "known_slots", lambda _: 2)
    job(
        RowTasks(session, jobs, uri=str(tmp_path), concurrency=None),
        spec_at(str(tmp_path)),
        [(number, 10) for number in range(7)],
    )
    assert numbers == [7] * 7
