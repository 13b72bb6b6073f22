"""Paths without a table, damaged tables, and places without read or write permission."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import lance_spark.errors
from lance_spark.datasource import LanceDataSource
from lance_spark.errors import (
    LanceSparkError,
    OptionError,
    TableNotFoundError,
    TableUnreadableError,
)
from tests.malformed.conftest import Refused, fingerprint, read

pytestmark = pytest.mark.sample(1, tests=2)

# --- no table ----------------------------------------------------------------------------------------------------------------


def nothing(at: Path) -> str:
    return str(at / "nothing.lance")


def plain_file(at: Path) -> str:
    (at / "file.lance").write_text("not a table")
    return str(at / "file.lance")


def below_a_file(at: Path) -> str:
    return plain_file(at) + "/table.lance"


def empty_directory(at: Path) -> str:
    (at / "empty.lance").mkdir()
    return str(at / "empty.lance")


def parquet_directory(at: Path) -> str:
    (at / "parquet").mkdir()
    pq.write_table(pa.table({"id": [1]}), at / "parquet" / "part-0.parquet")
    return str(at / "parquet")


def inside_of_a_table(at: Path) -> str:
    return str(at / "table.lance" / "_versions")


def only_data(at: Path) -> str:
    shutil.copytree(at / "table.lance", at / "only_data.lance")
    shutil.rmtree(at / "only_data.lance" / "_versions")
    return str(at / "only_data.lance")


def name_too_long(at: Path) -> str:
    return str(at / ("x" * 300))


PLACES = [
    nothing,
    plain_file,
    below_a_file,
    empty_directory,
    parquet_directory,
    inside_of_a_table,
    only_data,
    name_too_long,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_read_says_that_there_is_no_table(
    place: Callable[[Path], str], tmp_path: Path, table: str, check_refused: Refused
):
    path = place(tmp_path)
    with check_refused((TableNotFoundError, TableUnreadableError), path, at=str(tmp_path)):
        read({"path": path})


URIS = [
    "nosuchscheme://bucket/table.lance",
    "hdfs://host/table.lance",
    "http://127.0.0.1:9/table.lance",
    "s3://",
    "two\0parts",
]


@pytest.mark.parametrize("uri", URIS, ids=repr)
def test_a_read_refuses_a_location_that_is_none(uri: str, check_refused: Refused):
    with check_refused((OptionError, TableNotFoundError, TableUnreadableError)):
        read({"path": uri})


def test_a_store_that_does_not_answer_is_unreadable_and_not_absent(check_refused: Refused):
    storage = {
        "storage.aws_endpoint": "http://127.0.0.1:9",
        "storage.allow_http": "true",
        "storage.aws_region": "us-east-1",
        "storage.aws_access_key_id": "x",
        "storage.aws_secret_access_key": "not-to-be-shown",
        "storage.client_max_retries": "0",
        "storage.client_retry_timeout": "1",
    }
    with pytest.raises(TableUnreadableError) as caught:
        read({"path": "s3://bucket/table.lance", **storage})
    assert "storage.*" in str(caught.value)
    assert "not-to-be-shown" not in str(caught.value)


# --- damaged tables ----------------------------------------------------------------------------------------------------------


def manifests(table: Path) -> list[Path]:
    return sorted((table / "_versions").glob("*.manifest"))


def latest_manifest(table: Path) -> Path:
    # Names count down from 2^64, so the newest version comes first in a listing.
    return max(manifests(table), key=lambda file: file.stat().st_mtime_ns)


def a_data_file(table: Path) -> Path:
    return min((table / "data").iterdir())


def the_deletion_file(table: Path) -> Path:
    return min((table / "_deletions").iterdir())


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def cut_in_half(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def cut_by_a_byte(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def zeroed(file: Path) -> None:
    file.write_bytes(b"\0" * file.stat().st_size)


def scrambled(file: Path) -> None:
    file.write_bytes(bytes((i * 7 + 13) % 256 for i in range(file.stat().st_size)))


def replaced_by_text(file: Path) -> None:
    file.write_text("<html>404 Not Found</html>" * 40)


def delete_file(file: Path) -> None:
    file.unlink()


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES = [emptied, cut_in_half, cut_by_a_byte, zeroed, scrambled, replaced_by_text]
WHERE: dict[str, Callable[[Path], Path]] = {
    "manifest": latest_manifest,
    "data file": a_data_file,
    "deletion file": the_deletion_file,
}


@pytest.mark.parametrize(
    "damage", [*DAMAGES, delete_file, a_directory], ids=lambda damage: damage.__name__
)
@pytest.mark.parametrize("where", list(WHERE))
def test_a_damaged_table_is_unreadable(
    where: str, damage: Callable[[Path], None], table: str, check_refused: Refused
):
    if (where, damage) == ("manifest", delete_file):
        for older in manifests(Path(table)):
            older.unlink()
    else:
        damage(WHERE[where](Path(table)))
    with check_refused((TableUnreadableError, TableNotFoundError), table):
        read({"path": table})


def test_a_data_file_of_another_table_is_unreadable(
    table: str, tmp_path: Path, check_refused: Refused
):
    lance.write_dataset(pa.table({"other": [1, 2]}), str(tmp_path / "other.lance"))
    shutil.copy(a_data_file(tmp_path / "other.lance"), a_data_file(Path(table)))
    with check_refused(TableUnreadableError, table):
        read({"path": table})


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_write_to_a_table_with_a_damaged_manifest_is_refused(
    damage: Callable[[Path], None], table: str, check_refused: Refused
):
    # Mistaken for a missing table, the table would be recreated over its remains.
    damage(latest_manifest(Path(table)))
    schema = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
    with check_refused(TableUnreadableError, table):
        LanceDataSource({"path": table}).writer(schema, False)


# --- permissions -------------------------------------------------------------------------------------------------------------

WITHOUT_PRIVILEGES = """
import ctypes, os, sys
if os.getuid() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            sys.exit(f"cannot drop capability {capability}: {os.strerror(ctypes.get_errno())}")
os.execv(sys.executable, [sys.executable, "-m", "tests.malformed.permissions", *sys.argv[1:]])
"""
"""Permission bits then bind even root."""


Attempt = Callable[[str, str], str]
"""Accesses a table in some way; returns name and message of the typed error."""


@pytest.fixture(scope="module")
def attempt() -> Iterator[Attempt]:
    """Accesses in a process that permission bits bind."""
    command = [sys.executable, "-c", WITHOUT_PRIVILEGES]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def ask(kind: str, path: str) -> str:
            print(json.dumps([kind, path]), file=orders, flush=True)
            answer: str = json.loads(answers.readline())
            return answer

        yield ask
        orders.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", [".", "_versions", "data"])
def test_a_table_that_may_not_be_read_is_unreadable_and_not_absent(
    part: str, table: str, attempt: Attempt
):
    before = fingerprint(table)
    place = Path(table, part)
    place.chmod(0)
    try:
        answer = attempt("read", table)
    finally:
        place.chmod(0o755)
    assert answer.startswith("TableUnreadableError: "), answer
    assert table in answer
    assert fingerprint(table) == before


@pytest.mark.parametrize("kind", ["append", "overwrite", "backfill"])
def test_a_table_that_may_not_be_written_stays_as_it_was(kind: str, table: str, attempt: Attempt):
    before = fingerprint(table)
    places = [Path(table), *(entry for entry in Path(table).rglob("*") if entry.is_dir())]
    for place in places:
        place.chmod(0o555)
    try:
        answer = attempt(kind, table)
    finally:
        for place in places:
            place.chmod(0o755)
    name = answer.split(":")[0]
    assert issubclass(getattr(lance_spark.errors, name, object), LanceSparkError), answer
    assert table in answer
    assert fingerprint(table) == before


@pytest.mark.parametrize("kind", ["append", "overwrite"])
def test_a_new_table_where_none_may_be_made_leaves_nothing(
    kind: str, tmp_path: Path, attempt: Attempt
):
    place = tmp_path / "closed"
    place.mkdir()
    place.chmod(0o555)
    try:
        answer = attempt(kind, str(place / "new.lance"))
    finally:
        place.chmod(0o755)
    name = answer.split(":")[0]
    assert issubclass(getattr(lance_spark.errors, name, object), LanceSparkError), answer
    assert str(place) in answer
    assert list(place.iterdir()) == []
