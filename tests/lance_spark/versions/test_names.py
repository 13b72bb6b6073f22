"""Names of tags and branches: checked at creation. Foreign names can be deleted."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from lance_spark import Connection, OptionError, Table, TableUnreadableError, VersionNotFoundError

BAD = (
    "é",
    "ü_1",
    "日本",
    "a b",
    "a:b",
    "a\0",
    "",
    ".",
    ".a",
    "..",
    "a..b",
    "a.",
    "a.lock",
    "/",
    "main",
    "7",
    " 7",
    "٣",
    None,
    1,
)


@pytest.mark.parametrize("kind", ["tags", "branches"])
def test_a_name_that_lance_cannot_list_is_refused_for_a_tag_and_for_a_branch(
    table: Table, kind: str
) -> None:
    for name in BAD:
        if (kind, name) in (("branches", ".a"), ("branches", "a.")):
            continue
        with pytest.raises(OptionError) as caught:
            table.tags.create(name, 1) if kind == "tags" else table.branches.create(name)  # type: ignore[arg-type]
        assert caught.value.option == ("tag" if kind == "tags" else "name")
        assert caught.value.value == (name if name is None or isinstance(name, str) else repr(name))
        assert (
            "is missing" in str(caught.value)
            if name is None
            else f" = {name!r} is not valid" in str(caught.value)
        )
    assert table.tags.list() == {} and table.branches.list() == {}


@pytest.mark.parametrize("name", ["", " t", ".t", "_t", "a/b", "a\\b", "a\0", "a\n", "\ud800"])
def test_a_name_that_no_folder_can_have_is_refused_for_a_table(
    db: Connection, table: Table, name: str
) -> None:
    rows = pa.table({"id": [1]})
    for make in (
        lambda: db.create_table(name, rows),
        lambda: db.create_materialized_view(name, table.search(None)),
        lambda: db.rename_table("words", name),
    ):
        with pytest.raises(OptionError, match=r"Option '(new_)?name'|the name of a table"):
            make()
    assert db.table_names() == ["words"]


def test_a_tag_of_another_writer_that_lance_cannot_list_is_named_and_can_be_deleted(
    table: Table,
) -> None:
    table.tags.create("good", 1)
    for name in ("é", "日本"):
        table.to_lance().tags.create(name, 2)
    calls = {
        "list": table.tags.list,
        "get_version": lambda: table.tags.get_version("good"),
        "update": lambda: table.tags.update("good", 2),
        "checkout": lambda: table.checkout("good"),
        "a branch": lambda: table.branches.create("b"),
        "cleanup": lambda: table.cleanup_old_versions(timedelta(0)),
    }
    for call in calls.values():
        with pytest.raises(
            TableUnreadableError, match=r"Delete the tag with table.tags.delete\('(é|日本)'\)"
        ):
            call()
    with pytest.raises(VersionNotFoundError):
        table.tags.delete("ü")
    table.tags.delete("日本")
    table.tags.delete("é")
    assert table.tags.list() == {"good": 1}
    assert (
        table.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False).old_versions
        == 1
    )


def test_a_branch_of_another_writer_with_letters_outside_ascii_is_read_and_deleted(
    table: Table,
) -> None:
    table.to_lance().create_branch("é")
    assert list(table.branches.list()) == ["é"] and table.branches.checkout("é").count_rows() == 30
    table.branches.delete("é")
    assert table.branches.list() == {}
