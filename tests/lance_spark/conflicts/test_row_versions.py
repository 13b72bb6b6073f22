"""What becomes of Lance's row versions, ids and deletions when a column file is replaced: what the documentation says of it."""

from __future__ import annotations

import lance
import pytest

from tests.lance_spark.conflicts.jobs import Lab, slipping_in
from tests.lance_spark.conflicts.others import compact, delete_rows, update_input, work_of_others
from tests.lance_spark.conflicts.writes import make, write_while

Versions = dict[int, tuple[int, int, int]]


def versions(uri: str) -> Versions:
    """Returns row id, version of creation and version of the last update, by id."""
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    table = lance.dataset(uri).scanner(columns=columns, with_row_id=True).to_table()
    return {
        row["id"]: (row["_rowid"], row["_row_created_at_version"], row["_row_last_updated_at_version"])
        for row in table.to_pylist()
    }


def test_rows_of_fragments_that_a_job_does_not_write_keep_their_version(lab: Lab):
    """A DataReplacement moves the version of all rows of the fragments that it names, whether their value changed or not."""
    lab.table()
    before = versions(lab.uri)
    lab.run(where="x IN (12, 13)")
    after = versions(lab.uri)
    moved = {i for i, (_, _, updated) in after.items() if updated != before[i][2]}
    assert moved == set(range(10, 20)), "Lance says now which rows of a fragment changed: say so in the documentation"
    assert {after[i][2] for i in moved} == {lance.dataset(lab.uri).version}
    assert {i: row[:2] for i, row in after.items()} == {i: row[:2] for i, row in before.items()}


def test_a_job_that_has_nothing_to_do_moves_no_version(lab: Lab):
    lab.table()
    lab.run()
    before = versions(lab.uri)
    lab.run()
    assert versions(lab.uri) == before


def test_values_that_are_carried_over_move_the_versions_of_their_new_fragments_only(lab: Lab):
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
def test_row_ids_and_creation_stay_through_a_compaction_and_a_write(indexed: bool, path: str) -> None:
    make(path, indexed=indexed)
    before = versions(path)
    write_while(path, compact, "before").check()
    assert {i: row[:2] for i, row in versions(path).items()} == {i: row[:2] for i, row in before.items()}


@pytest.mark.parametrize("stable", [True, False])
def test_a_write_never_brings_a_deleted_row_back(stable: bool, path: str) -> None:
    """Deletions that come after the committer's look are in the fragment that it replaces a file of."""
    make(path, stable=stable, indexed=True)
    deleted: list[int] = []

    def act(uri: str) -> None:
        for ids in ((0, 9), (10, 11, 12), (39,)):
            lance.dataset(uri).delete(f"id IN ({', '.join(map(str, ids))})")
            deleted.extend(ids)

    written = write_while(path, act, "slipped")
    assert set(work_of_others(path)) == set(range(40)) - set(deleted)
    assert lance.dataset(path).count_rows() == 34
    written.check()
    live = {f.fragment_id: f.metadata.num_deletions for f in lance.dataset(path).get_fragments()}
    assert live == {0: 2, 1: 3, 2: 0, 3: 1}


@pytest.mark.parametrize("granularity", [1, None])
def test_a_job_never_brings_a_deleted_row_back(granularity: int | None, lab: Lab):
    lab.table(indexed=True)
    acts = [lambda uri, i=i: lance.dataset(uri).delete(f"id % 10 = {i}") for i in range(4)]
    with slipping_in(lab.uri, *acts) as left:
        lab.run(commit_granularity=granularity, concurrency=1)
    gone = range(4 - len(left))
    assert set(work_of_others(lab.uri)) == {i for i in range(40) if i % 10 not in gone}
    assert lance.dataset(lab.uri).count_rows() == 40 - 4 * len(gone)


def test_repairs_after_a_commit_bring_no_deleted_row_back(lab: Lab):
    """What slipped in has to be repaired by another commit, and rows are deleted before that one too."""
    lab.table(indexed=True)

    def first(uri: str) -> None:
        lance.dataset(uri).delete("id IN (1, 35)")
        source = lance.dataset(uri).to_table(columns=["id", "x"], filter="id IN (5, 36)")
        source = source.set_column(1, "x", [[1005, 1036]])
        lance.dataset(uri).merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(source)

    with slipping_in(lab.uri, first, delete_rows, update_input) as left:
        lab.run(commit_granularity=None)
    gone = {1, 35} | ({3, 4, 21} if len(left) < 2 else set())
    assert set(work_of_others(lab.uri)) == set(range(40)) - gone
    lab.run()
    values = lance.dataset(lab.uri).to_table(columns=["x", "v"]).to_pylist()
    assert [row for row in values if row["v"] != (None if row["x"] % 7 == 3 else row["x"] * 10)] == []
