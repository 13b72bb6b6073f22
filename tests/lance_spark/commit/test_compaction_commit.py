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
    together = threading.Barrier(3, timeout=20)
    calls: list[Sequence[str]] = []

    def missing(names: Sequence[str]) -> list[str]:
        calls.append(names)
        if len(calls) == 2:
            together.wait()
        return []

    for name in ("first_unknown", "refuse_dropped"):
        check = getattr(compaction_commit, name)

        def wait_and_check(*arguments: Any, check: Any = check) -> Any:
            together.wait()
            return check(*arguments)

        monkeypatch.setattr(compaction_commit, name, wait_and_check)
    outcome = commit_compacted(DatasetRef.at(uri), Basis.of(dataset), [part], missing=missing)
    assert outcome.version == lance.dataset(uri).version
    assert [[*names] for names in calls] == [[*part.files]] * 2
    assert lance.dataset(uri).count_rows() == 4
