"""Tags that protect the snapshot of a job."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from lance.dataset import Tags

from lance_spark.backfill.driver.checkpoint_upkeep import protect
from lance_spark.dataset import DatasetRef
from lance_spark.errors import TableUnwritableError
from tests.support.inline_jobs import (
    InlineLab,
)

ROWS = 40
IDS = pa.table({"id": range(ROWS)})


def refuse(*_: object) -> None:
    raise ValueError("Ref conflict: the store said no")


def test_a_job_runs_although_an_expired_tag_of_another_job_cannot_be_removed(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    old_tag = protect(DatasetRef.at(lab.uri).pin(None), "a" * 40, begin_s=0.0)
    monkeypatch.setattr(Tags, "delete", refuse)
    assert table.backfill("v").status == "DONE"
    assert "expired tags" in caplog.text and "the store said no" in caplog.text
    assert list(lance.dataset(lab.uri).tags.list()) == [old_tag]


def test_a_snapshot_that_cannot_be_protected_is_said_in_an_error_of_ours(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
):
    table = lab.make(IDS)
    table.add_columns({"v": lab.udf()})
    monkeypatch.setattr(Tags, "create", refuse)
    with pytest.raises(
        TableUnwritableError, match=r"version 2 cannot be tagged .* the store said no. Check"
    ):
        table.backfill("v", protect_snapshot=True)
    assert lab.calls() == []
