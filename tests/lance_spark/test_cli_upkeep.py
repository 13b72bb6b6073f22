"""The commands for folders, tags and upkeep."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of three fragments in a folder of two."""
    for name in ("words", "other"):
        for first in (0, 10, 20):
            rows = pa.table({"id": pa.array(range(first, first + 10), pa.int64())})
            lance.write_dataset(
                rows, f"{tmp_path}/db/{name}.lance", mode="append", enable_stable_row_ids=True
            )
    return f"{tmp_path}/db/words.lance"


def test_a_folder_is_answered_with_its_tables(run: Run, uri: str):
    folder = uri.rpartition("/")[0]
    code, out, _ = run("tables", folder)
    assert code == 0 and [line.split() for line in out.splitlines() if "30" in line] == [
        ["other", "3", "30", "3", "0.0"],
        ["words", "3", "30", "3", "0.0"],
    ]
    assert json.loads(run("tables", folder, "--json")[1]) == ["other", "words"]
    code, _, err = run("versions", folder)
    assert (
        code == 1
        and f"It is a folder with the tables {folder}/other.lance, {uri}: name one of them" in err
    )
    Path(folder, "empty").mkdir()
    assert run("tables", f"{folder}/empty")[:2] == (0, "no tables\n")
    code, out, err = run("tables", f"{folder}/nowhere")
    assert (code, out, err.count("\n")) == (1, "", 1) and "The folder does not exist" in err


def test_the_version_of_the_program(run: Run):
    assert run("--version")[:2] == (0, f"lance-spark {version('lance-spark')}\n")


def test_tags_are_listed_and_restored(run: Run, uri: str):
    assert "no tags" in run("tags", uri)[1]
    lance.dataset(uri).tags.create("first", 1)
    assert json.loads(run("tags", uri, "--json")[1]) == {"first": 1}
    assert run("tags", uri)[1].split()[-2:] == ["first", "1"]
    code, out, _ = run("restore", uri, "first")
    assert (code, out) == (0, "version first is the latest again, as version 4\n")
    assert lance.dataset(uri).count_rows() == 10 and run("restore", uri, "3")[0] == 0
    assert lance.dataset(uri).count_rows() == 30
    code, _, err = run("restore", uri, "second")
    assert code == 1 and "second" in err


def test_branches_are_listed_and_given_by_their_location(run: Run, uri: str):
    assert "no branches" in run("branches", uri)[1]
    lance.dataset(uri).create_branch("work", 2)
    (branch,) = json.loads(run("branches", uri, "--json")[1])
    assert (branch["name"], branch["parent"], branch["parent_version"]) == ("work", "main", 2)
    assert {"work", "main:2"} <= set(run("branches", uri)[1].split())
    assert (
        run("restore", f"{uri}/tree/work", "2")[1]
        == "version 2 is the latest again, as version 3\n"
    )
    assert lance.dataset(uri).version == 3 == lance.dataset(f"{uri}/tree/work").version


def test_compaction_and_cleanup(run: Run, uri: str, spark: SparkSession):
    code, out, _ = run("compact", uri)
    assert code == 0 and out.startswith("3 fragments became 1, with 30 rows")
    assert run("compact", uri)[1] == "nothing to compact\n"
    lance.dataset(uri).tags.create("first", 1)
    assert run("cleanup", uri)[1] == "0 versions removed, 0 bytes\n"
    code, out, _ = run("cleanup", uri, "--older-than-days", 0, "--json")
    removed = json.loads(out)
    assert code == 0 and removed["old_versions"] >= 2 and removed["bytes_removed"] > 0
    assert lance.dataset(uri, version=1).count_rows() == 10
    assert run("cleanup", uri, "--older-than-days", -1)[0] == 2
    assert run("compact", uri, "--target-rows", 0)[0] == 2


def test_indexes_are_built_listed_and_dropped(run: Run, uri: str, spark: SparkSession):
    assert "no indexes" in run("index", uri)[1]
    code, out, _ = run("index", uri, "--create", "id", "--json")
    assert code == 0
    assert json.loads(out) == [
        {"name": "id_idx", "type": "BTREE", "columns": ["id"], "rows": 30, "other_rows": 0}
    ]
    lance.write_dataset(pa.table({"id": pa.array([90], pa.int64())}), uri, mode="append")
    assert run("index", uri)[1].split()[-5:] == ["id_idx", "BTREE", "id", "30", "1"]
    assert json.loads(run("index", uri, "--optimize", "--json")[1])[0]["other_rows"] == 0
    assert run("index", uri, "--create", "id", "--type", "NIX")[0] == 2
    assert (
        run("index", uri, "--create", "nix")[0] == 1
        and run("index", uri, "--create", "id", "--optimize")[0] == 2
    )
    assert "no indexes" in run("index", uri, "--drop", "id_idx")[1]
    assert run("index", uri, "--drop", "id_idx")[0] == 1
