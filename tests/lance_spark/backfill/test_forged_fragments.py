"""Fragments whose metadata claims more rows than their data files have."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_spark import BackfillIncompleteError, CommitError
from lance_spark.backfill.driver.checkpoint_upkeep import CheckpointUpkeep
from lance_spark.backfill.task import computation
from lance_spark.backfill.task.messages import FragmentRows
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.column_file import ColumnFile
from tests.support.inline_jobs import CUT, InlineLab, values, without_spark
from udf_runtime.checkpoint import CheckpointEntry, CheckpointStore


@pytest.mark.parametrize(
    "claim", [11, (1 << 22) + 1, pytest.param(1 << 31, marks=pytest.mark.long)]
)
def test_a_backfill_of_a_fragment_that_claims_missing_rows_ends_within_seconds(
    claim: int, tmp_path: Path
) -> None:
    with without_spark(tmp_path) as lab:
        dataset = lance.write_dataset(pa.table({"id": pa.array(range(10), pa.int64())}), lab.uri)
        forged = dataset.get_fragments()[0].metadata
        forged.physical_rows = claim
        lance.LanceDataset.commit(lab.uri, lance.LanceOperation.Overwrite(dataset.schema, [forged]))
        table = lab.table()
        table.add_columns({"y": (lab.udf(), ["id"])})
        version, began = table.version, time.monotonic()
        with pytest.raises(
            BackfillIncompleteError, match=r"cannot be read: .*fragment 1"
        ) as caught:
            table.backfill("y")
        assert time.monotonic() - began < 60
        assert (table.version, lab.calls() if claim > 11 else []) == (version, [])
        assert caught.value.result.fragments_done == 0


def test_the_ranges_of_a_damaged_fragment_have_one_record_of_their_error(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is a commit."""
    commits: list[int] = []
    append = computation.append_rows
    monkeypatch.setattr(
        computation, "append_rows", lambda *args: (commits.append(args[2].num_rows), append(*args))
    )
    table = lab.make(pa.table({"id": range(40)}))
    table.add_columns({"y": (lab.udf(), ["id"])})
    Path(lab.uri, "data", table.to_lance().get_fragments()[0].data_files()[0].path).unlink()
    for run in (1, 2):
        with pytest.raises(BackfillIncompleteError, match="fragment 0: "):
            table.backfill("y", **CUT)
        assert commits == [1] * run
    assert {(error.fragment_id, error.row_address) for error in table.get_errors()} == {(0, None)}


EMPTY = RowSet.empty().to_text()
WIDE = RowSet.span(0, 1000).to_text()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "forged",
    [
        {"rows": {}},
        {"rows": {"own": EMPTY}},
        {"rows": {"computed": WIDE}},
        {"rows": {"computed": "x", "own": EMPTY}},
        {"rows": {"computed": 5, "own": None}},
        {"rows": {"computed": WIDE, "own": WIDE, "other": EMPTY}},
        {"data_file": "absent.lance"},
        {"data_file": "../../outside.lance"},
        {"data_file": "", "context": {"fragment": [0]}},
    ],
    ids=str,
)
def test_a_forged_reference_to_a_column_file_is_ignored(
    forged: dict[str, Any], lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lab.make(pa.table({"id": range(8)}), rows_per_file=4)
    table.add_columns({"y": (lab.udf(), ["id"])})
    write = CheckpointStore.write_references

    def forge(
        store: CheckpointStore, key: Any, references: Mapping[str, Any], **options: Any
    ) -> CheckpointEntry:
        bodies: Any = {source: {**body, **forged} for source, body in references.items()}
        return write(store, key, bodies, **options)

    with monkeypatch.context() as patches, lab.dying_at_commit():
        patches.setattr(CheckpointStore, "write_references", forge)
        table.backfill("y")
    lab.calls()
    for values_file in Path(lab.uri).rglob("*.rows"):
        values_file.unlink()
    assert table.plan_backfill("y").total_rows_pending == 8
    assert table.backfill("y").status == "DONE"
    assert lab.calls() == [*range(8)] and values(table, "y") == {i: (i,) for i in range(8)}


@pytest.mark.parametrize("rows", [{}, {"own": "x"}, {"own": 5}, {"own": "None"}])
def test_a_forged_reference_names_no_committed_rows(rows: dict[str, Any]) -> None:
    """The end of a job reads the references of its own id, which another program may have written."""
    upkeep: Any = object.__new__(CheckpointUpkeep)
    upkeep._spec = SimpleNamespace(key=SimpleNamespace(digest="k"))
    member = SimpleNamespace(source="s", job_id="j")
    body: Any = {"data_file": "f", "size_bytes": 1, "rows": rows, "context": {"fragment": 0}}
    assert not upkeep._is_recorded(member, body, None)
    upkeep._store = SimpleNamespace(read_reference=lambda *_: body)
    outcome: Any = SimpleNamespace(rows=FragmentRows(), source="s")
    assert upkeep._is_covered(SimpleNamespace(kind="reference"), outcome, is_own=True), (
        "it serves no later run"
    )


def test_an_error_of_a_commit_that_is_not_late_has_a_record(
    lab: InlineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: ColumnFile, *_: Any) -> None:
        raise CommitError("The file has too few rows.", uri=lab.uri)

    table = lab.make(pa.table({"id": range(4)}))
    table.add_columns({"y": (lab.udf(), ["id"])})
    monkeypatch.setattr(ColumnFile, "append", fail)
    with pytest.raises(BackfillIncompleteError, match="too few rows"):
        table.backfill("y")
    assert [error.error_message for error in table.get_errors()] == ["The file has too few rows."]
