"""An SQL statement whose driver is killed, at a point or at any moment: the statement takes effect completely or not at
all. Two concurrent drivers.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from lance_spark import Connection
from tests.lance_spark.dml.tables import content, make
from tests.lance_spark.sql.conftest import Sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.classic

CHANGES = {
    "update in place": "UPDATE c.t SET s = 'new' WHERE id % 2 = 0 AND id IN (SELECT id FROM c.t)",
    "update rows": "UPDATE c.t SET s = 'new', v = array(0F, 0F), t = named_struct('x', 1L, 'y', 'y') WHERE id IN (2, 13)",
    "delete": "DELETE FROM c.t WHERE id IN (SELECT id FROM c.t WHERE id % 3 = 0)",
    "merge": (
        "MERGE INTO c.t o USING (VALUES (2L, 'new'), (77L, 'new') AS n(id, s)) n ON o.id = n.id "
        "WHEN MATCHED AND n.id = 2 THEN UPDATE SET s = n.s WHEN NOT MATCHED THEN INSERT (id, s) VALUES (n.id, n.s) "
        "WHEN NOT MATCHED BY SOURCE AND o.id = 9 THEN DELETE"
    ),
    "replace where": "INSERT INTO c.t REPLACE WHERE id < 12 SELECT 500L, 1, 'new', array(0F, 0F), named_struct('x', 1L, 'y', 'y')",
}
WRITES = {
    "insert": "INSERT INTO c.t (id, s) SELECT id + 100, 'new' FROM range(20)",
    "insert overwrite": "INSERT OVERWRITE c.t SELECT id + 100, a, s, v, t FROM c.t",
    "replace by a query": "CREATE OR REPLACE TABLE c.t AS SELECT id, upper(s) AS s FROM c.t",
    "create by a query": "CREATE TABLE c.made AS SELECT id, upper(s) AS s FROM c.t",
    "truncate": "TRUNCATE TABLE c.t",
    "alter": "ALTER TABLE c.t ADD COLUMNS (extra INT, more STRING)",
}
POINTS = ("before the commit", "in the commit", "after the commit")


@contextmanager
def driver(folder: Path, point: str, *statements: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process for statements, from its stop on; it is killed with all its children."""
    command = [sys.executable, "-m", "tests.support.sql_driver", str(folder), point, *statements]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # all processes have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def state(folder: Path) -> list[object]:
    """Returns the contents of the tables in a folder."""
    return [
        content(str(path))
        for path in sorted(folder.glob("*.lance"))
        if (path / "_versions").exists()
    ]


def outcomes(sql: Sql, db: Connection, folder: Path, statement: str) -> list[list[object]]:
    """Returns the contents without and with a statement."""
    copy_folder = Path(db.uri)
    shutil.copytree(folder / "t.lance", copy_folder / "t.lance")
    before = state(copy_folder)
    sql(statement.replace("c.", "{c}."))
    return [before, state(copy_folder)]


def check_left(folder: Path, sql: Sql, db: Connection, statement: str) -> None:
    """After a killed driver the statement succeeds, and a cleanup leaves no unreferenced file."""
    shutil.rmtree(db.uri)
    shutil.copytree(folder, db.uri)
    if (Path(db.uri) / "made.lance" / "_versions").exists():
        sql("DROP TABLE {c}.made")
    if statement.startswith("ALTER"):
        sql("ALTER TABLE {c}.t DROP COLUMNS IF EXISTS (extra, more)")
    sql(statement.replace("c.", "{c}."))
    for path in Path(db.uri).glob("*.lance"):
        lance_spark.cleanup(str(path), older_than=timedelta(0))
        versions = [
            lance.dataset(str(path), version=v["version"])
            for v in lance.dataset(str(path)).versions()
        ]
        referenced_files = {
            file.path
            for version in versions
            for part in version.get_fragments()
            for file in part.metadata.files
        }
        assert {file.name for file in (path / "data").iterdir()} == referenced_files


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_driver_that_is_killed_at_a_point(
    sql: Sql, db: Connection, tmp_path_factory: pytest.TempPathFactory, kind: str, point: str
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    make(f"{folder}/t.lance")
    expected = outcomes(sql, db, folder, CHANGES[kind])
    with driver(folder, point, CHANGES[kind]) as process:
        eventually(lambda: (folder / "held").exists() or process.poll() is not None, seconds=120)
        assert process.poll() is None
    assert (
        state(folder)
        == expected[point == "after the commit"]
        != expected[point != "after the commit"]
    )
    check_left(folder, sql, db, CHANGES[kind])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [*CHANGES, *WRITES])
def test_a_driver_that_is_killed_at_any_moment(
    sql: Sql, db: Connection, tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int
) -> None:
    folder, statement = tmp_path_factory.mktemp("killed"), (CHANGES | WRITES)[kind]
    make(f"{folder}/t.lance")
    expected = outcomes(sql, db, folder, statement)
    with driver(folder, "none", statement) as process:
        eventually(lambda: (folder / "held").exists() or process.poll() is not None, seconds=120)
        (folder / "go").touch()
        time.sleep(random.Random(f"{kind} {seed}").uniform(0, 3))
    assert state(folder) in expected
    check_left(folder, sql, db, statement)


@pytest.mark.long
def test_two_drivers_at_once(
    sql: Sql, db: Connection, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("two")
    rows = pa.table({"id": range(40), "n": [0] * 40})
    lance.write_dataset(rows, f"{folder}/t.lance", max_rows_per_file=10, enable_stable_row_ids=True)
    statements = [
        *("UPDATE c.t SET n = n + 1 WHERE id % 4 < 2", "UPDATE c.t SET n = n + 1 WHERE id < 3") * 4,
        "INSERT INTO c.t SELECT max(id) + 1, 0 FROM c.t",
    ]
    with (
        driver(folder, "none", *statements) as first_driver,
        driver(folder, "none", *statements) as second_driver,
    ):
        eventually((folder / "held").exists, seconds=120)
        (folder / "go").touch()
        assert first_driver.wait(400) == 0 == second_driver.wait(400)
    final_rows = sorted(
        tuple(row.values()) for row in lance.dataset(f"{folder}/t.lance").to_table().to_pylist()
    )
    assert final_rows[:40] == [(i, 8 * (i % 4 < 2) + 8 * (i < 3)) for i in range(40)]
    # An INSERT reads the version of its start, and appends to any.
    assert final_rows[40:] in ([(40, 0), (41, 0)], [(40, 0), (40, 0)])
