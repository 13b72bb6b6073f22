"""The commit of a compaction on an object store: checks that run at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction

from lance_spark.commit.rows import compaction_commit
from lance_spark.commit.rows.compaction_commit import Basis, Compacted, commit_compacted
from lance_spark.dataset import DatasetRef


def test_the_checks_after_a_commit_wait_for_each_other_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file-object-store://{tmp_path}/t.lance"
    lance.write_dataset(
        pa.table({"id": range(4)}), uri, max_rows_per_file=1, enable_stable_row_ids=True
    )
    dataset = lance.dataset(uri)
    (task,) = Compaction.plan(dataset, {}).tasks
    olds = tuple(task.fragments)
    part = Compacted(olds=olds, rewrite=task.execute(dataset).json())
    checking = [threading.Event(), threading.Event()]
    calls: list[Sequence[str]] = []
    first_unknown = compaction_commit.first_unknown

    def missing(names: Sequence[str]) -> list[str]:
        calls.append(names)
        if len(calls) == 2:
            checking[0].set()
            assert checking[1].wait(20)
        return []

    def look_for_unseen(*arguments: Any) -> int | None:
        checking[1].set()
        assert checking[0].wait(20)
        return first_unknown(*arguments)

    monkeypatch.setattr(compaction_commit, "first_unknown", look_for_unseen)
    outcome = commit_compacted(DatasetRef.at(uri), Basis.of(dataset), [part], missing=missing)
    assert outcome.version == lance.dataset(uri).version
    assert [[*names] for names in calls] == [[*part.files]] * 2
    assert lance.dataset(uri).count_rows() == 4
