"""The effect of a replaced column file on Lance's row versions, ids and deletions, as documented."""

from __future__ import annotations

import lance
import pytest

from tests.lance_spark.conflicts.jobs import ConflictLab
from tests.lance_spark.conflicts.others import compact
from tests.lance_spark.conflicts.writes import make, write_while

Versions = dict[int, tuple[int, int, int]]


def versions(uri: str) -> Versions:
    """Returns row id, version of creation and version of the last update, by id."""
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    table = lance.dataset(uri).scanner(columns=columns, with_row_id=True).to_table()
    return {
        row["id"]: (
            row["_rowid"],
            row["_row_created_at_version"],
            row["_row_last_updated_at_version"],
        )
        for row in table.to_pylist()
    }


def test_rows_of_fragments_that_a_job_does_not_write_keep_their_version(lab: ConflictLab):
    """A DataReplacement updates the version of all rows of its fragments, including rows with an unchanged value."""
    lab.table()
    before = versions(lab.uri)
    lab.run(where="x IN (12, 13)")
    after = versions(lab.uri)
    updated_ids = {i for i, (_, _, updated) in after.items() if updated != before[i][2]}
    assert updated_ids == set(range(10, 20)), (
        "Lance says now which rows of a fragment changed: say so in the documentation"
    )
    assert {after[i][2] for i in updated_ids} == {lance.dataset(lab.uri).version}
    assert {i: row[:2] for i, row in after.items()} == {i: row[:2] for i, row in before.items()}


def test_a_job_that_has_nothing_to_do_moves_no_version(lab: ConflictLab):
    lab.table()
    lab.run()
    before = versions(lab.uri)
    lab.run()
    assert versions(lab.uri) == before


def test_values_that_are_carried_over_move_the_versions_of_their_new_fragments_only(
    lab: ConflictLab,
):
    lab.table()
    lab.run(where="x < 20")
    before = versions(lab.uri)

    def act(uri: str) -> None:
        lance.dataset(uri).update({"y": "-1"}, where="id IN (25, 35)")

    lab.run_while(act, "slipped")
    after = versions(lab.uri)
    assert {i: after[i] for i in range(20)} == {i: before[i] for i in range(20)}
    assert {i: row[:2] for i, row in after.items()} == {i: row[:2] for i, row in before.items()}


@pytest.mark.parametrize("indexed", [True, False])
def test_row_ids_and_creation_stay_through_a_compaction_and_a_write(
    indexed: bool, path: str
) -> None:
    make(path, indexed=indexed)
    before = versions(path)
    write_while(path, compact, "before").check()
    assert {i: row[:2] for i, row in versions(path).items()} == {
        i: row[:2] for i, row in before.items()
    }
