"""The decision table of the committer, without storage: the verdict for a result, from its identity and the present
table.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lance_spark.commit.conflicts.history import Change
from lance_spark.commit.conflicts.identity import FieldIdentity, FragmentIdentity
from lance_spark.commit.conflicts.verdicts import (
    VALID,
    Verdict,
    judge_column,
    judge_fragment,
    judge_new_column,
)

COLUMN = FieldIdentity(name="c", id=4, ids=(4,), type="int64")
OURS = replace(COLUMN, token="one")
ANOTHER_FIELD = FieldIdentity(name="d", id=5, ids=(5,), type="int64")
FRAGMENT = FragmentIdentity(
    fragment_id=7,
    physical_rows=100,
    deleted_rows=2,
    files=frozenset({"a.lance", "b.lance"}),
    inputs=("a.lance:0",),
    targets=("b.lance:4",),
)


def change(operation: str | None, **more: object) -> Change:
    return Change(version=9, operation=operation, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("current", "changes", "verdict", "reason"),
    [
        (FRAGMENT, [], Verdict.VALID, ""),
        (replace(FRAGMENT, deleted_rows=50), [change("Delete")], Verdict.VALID, ""),
        (None, [change("Delete")], Verdict.GONE, "deleted"),
        (None, [change("Update")], Verdict.GONE, "moved by an update"),
        (
            None,
            [change("Rewrite", compacted=frozenset({7, 8}))],
            Verdict.CONFLICT,
            "compaction at version 9",
        ),
        (None, [change("Rewrite", compacted=frozenset({8}))], Verdict.GONE, ""),
        (None, [change("Overwrite")], Verdict.CONFLICT, "Overwrite at version 9"),
        (None, [change("Restore")], Verdict.CONFLICT, "Restore at version 9"),
        (None, [change(None)], Verdict.CONFLICT, "cleaned up"),
        (replace(FRAGMENT, physical_rows=99), [], Verdict.CONFLICT, "another fragment"),
        (
            replace(FRAGMENT, deleted_rows=1),
            [change("Restore")],
            Verdict.CONFLICT,
            "another fragment",
        ),
        (
            replace(FRAGMENT, inputs=("n.lance:0",)),
            [change("Update")],
            Verdict.CONFLICT,
            "input columns were rewritten",
        ),
        (
            replace(FRAGMENT, inputs=("a.lance:0", "overlay o:0")),
            [],
            Verdict.CONFLICT,
            "input columns were rewritten",
        ),
        (replace(FRAGMENT, targets=()), [], Verdict.CONFLICT, "the column itself"),
        (
            replace(FRAGMENT, targets=("b.lance:4", "overlay o:4")),
            [],
            Verdict.CONFLICT,
            "the column itself",
        ),
    ],
)
def test_a_fragment_is_judged_by_its_identity(
    current: FragmentIdentity | None, changes: list[Change], verdict: Verdict, reason: str
) -> None:
    judgement = judge_fragment(FRAGMENT, current, changes)
    assert judgement.verdict is verdict
    assert reason in judgement.reason


@pytest.mark.parametrize("operation", ["Overwrite", "Restore", None])
def test_without_inputs_an_equal_id_is_no_proof_after(operation: str | None) -> None:
    then = replace(FRAGMENT, inputs=(), targets=())
    rewritten = replace(then, files=frozenset({"other.lance"}))
    assert judge_fragment(then, rewritten, [change("Append")]) == VALID
    assert judge_fragment(then, rewritten, [change(operation)]).verdict is Verdict.CONFLICT
    assert judge_fragment(then, then, [change(operation)]) == VALID, "a file in common is"


@pytest.mark.parametrize(
    ("then", "head", "changes", "reason"),
    [
        (
            COLUMN,
            [ANOTHER_FIELD],
            [change("Project", schema=(ANOTHER_FIELD,))],
            "was dropped (Project at version 9)",
        ),
        (COLUMN, [replace(COLUMN, type="string")], [], "changed its type from int64 to string"),
        (COLUMN, [replace(COLUMN, id=6)], [], "dropped and recreated"),
        (OURS, [COLUMN], [], "dropped and recreated"),
        (OURS, [replace(OURS, token="two")], [], "dropped and recreated"),
        (COLUMN, [OURS], [], "dropped and recreated"),
        (COLUMN, [COLUMN], [change("Project", schema=(ANOTHER_FIELD,))], "Project at version 9"),
        (COLUMN, [COLUMN], [change("Restore")], "Restore at version 9"),
        (COLUMN, [COLUMN], [change("Overwrite")], "Overwrite at version 9"),
        (COLUMN, [COLUMN], [change(None)], "may have been dropped and recreated"),
        (
            COLUMN,
            [COLUMN],
            [change("Restore", undone=(change("Project", schema=(ANOTHER_FIELD,)),))],
            "Restore at version 9",
        ),
        (COLUMN, [COLUMN], [change("Restore", undone=(change(None),))], "Restore at version 9"),
    ],
)
def test_a_column_is_impossible_where_it_may_be_another_one(
    then: FieldIdentity, head: list[FieldIdentity], changes: list[Change], reason: str
) -> None:
    judgement = judge_column(then, head, changes)
    assert judgement.verdict is Verdict.IMPOSSIBLE
    assert reason in judgement.reason


@pytest.mark.parametrize(
    ("then", "changes"),
    [
        (
            COLUMN,
            [
                change("Append"),
                change("Update"),
                change("Rewrite"),
                change("Merge"),
                change("BaseOperation"),
            ],
        ),
        (COLUMN, [change("Project", schema=(COLUMN, ANOTHER_FIELD))]),
        (COLUMN, [change("Project", schema=(replace(COLUMN, name="x"), ANOTHER_FIELD))]),
        (
            COLUMN,
            [change("Restore", undone=(change("Append"), change("Project", schema=(COLUMN,))))],
        ),
        (
            OURS,
            [change(None), change("Restore"), change("Overwrite"), change("Project", schema=())],
        ),
    ],
)
def test_a_column_is_the_same_by_its_token_or_its_history(
    then: FieldIdentity, changes: list[Change]
) -> None:
    assert judge_column(then, [ANOTHER_FIELD, then], changes) == VALID
    assert judge_column(then, [ANOTHER_FIELD, replace(then, name="renamed")], changes) == VALID


@pytest.mark.parametrize(
    ("head", "own_token", "filled", "verdict"),
    [
        ([ANOTHER_FIELD], None, False, Verdict.VALID),
        ([ANOTHER_FIELD], "one", False, Verdict.IMPOSSIBLE),
        ([COLUMN], None, False, Verdict.CONFLICT),
        ([OURS], None, False, Verdict.VALID),
        ([OURS], None, True, Verdict.CONFLICT),
        ([OURS], "one", True, Verdict.VALID),
        ([OURS], "two", True, Verdict.CONFLICT),
        ([replace(OURS, type="string")], "one", False, Verdict.CONFLICT),
    ],
)
def test_a_new_column_is_filled_only_if_no_concurrent_writer_has_it(
    head: list[FieldIdentity], own_token: str | None, filled: bool, verdict: Verdict
) -> None:
    assert (
        judge_new_column(COLUMN, head, mine=own_token, is_filled=lambda _: filled).verdict
        is verdict
    )
