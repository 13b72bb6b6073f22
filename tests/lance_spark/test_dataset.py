"""A reference pins a version, opens exactly this version anywhere, and detects a recreated table."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import lance
import pyarrow as pa
import pytest

from lance_spark import lance_sessions
from lance_spark.dataset import DatasetRef, incarnation_of, table_exists
from lance_spark.errors import (
    OptionError,
    SnapshotError,
    TableNotFoundError,
    TableUnreadableError,
    VersionNotFoundError,
)
from lance_spark.locations import normalize_uri
from lance_spark.options.io_options import ReadOptions
from lance_spark.version_times import version_at


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table with three versions of 10, 20 and 30 rows; version 2 is tagged `two`."""
    path = str(tmp_path / "t.lance")
    for number in range(3):
        lance.write_dataset(
            pa.table({"id": range(10)}), path, mode="append" if number else "create"
        )
    lance.dataset(path).tags.create("two", 2)
    return path


def resolve(path: str, **options: str) -> DatasetRef:
    return DatasetRef.resolve(ReadOptions.parse({"path": path, **options}))


def test_without_a_version_the_latest_is_pinned_and_stays(table: str) -> None:
    ref = resolve(table)
    lance.write_dataset(pa.table({"id": range(10)}), table, mode="append")
    assert ref.version == 3
    assert pickle.loads(pickle.dumps(ref)).open().count_rows() == 30
    assert ref.open_latest().count_rows() == 40


@pytest.mark.parametrize(
    ("version_name", "rows"), [("1", 10), ("2", 20), ("two", 20), ("main:1", 10)]
)
def test_a_version_is_named_by_number_tag_or_branch(
    table: str, version_name: str, rows: int
) -> None:
    assert resolve(table, version=version_name).open().count_rows() == rows


def test_a_branch_is_read_at_its_own_versions(table: str) -> None:
    branch = lance.dataset(table).create_branch("audit", 1)
    lance.write_dataset(pa.table({"id": range(5)}), branch, mode="append")
    version = lance.dataset(table).checkout_version(("audit", None)).version
    ref = resolve(table, version=f"audit:{version}")
    assert ref.open().count_rows() == 15
    assert resolve(table).open().count_rows() == 30


def test_a_timestamp_gives_the_newest_version_not_after_it(table: str) -> None:
    moments = [v["timestamp"].astimezone(UTC) for v in lance.dataset(table).versions()]
    for index, moment in enumerate(moments):
        assert resolve(table, timestamp=moment.isoformat()).version == index + 1
        assert (
            resolve(table, timestamp=(moment + timedelta(microseconds=1)).isoformat()).version
            == index + 1
        )
    with pytest.raises(VersionNotFoundError, match="oldest version is of"):
        resolve(table, timestamp=(moments[0] - timedelta(microseconds=1)).isoformat())
    assert resolve(table, timestamp=datetime.now(UTC).isoformat()).version == 3


@pytest.fixture
def clocks_go_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Two moments, in nanoseconds, both at 02:30 in the time zone of this process."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    summer = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp())
    yield [summer * 10**9, (summer + 3600) * 10**9]
    monkeypatch.undo()
    time.tzset()


class CommittedAt:
    """Replaces a table whose versions were committed at these moments, because Lance's clock cannot be set.

    Attributes:
        opened: Numbers of the opened versions.
    """

    uri = "table"

    def __init__(
        self, *moments: int, version: int | None = None, opened: set[int] | None = None
    ) -> None:
        self.moments = moments
        self.version = version or len(moments)
        self.opened = set() if opened is None else opened
        counts = {"total_rows": "1", "total_data_files": "1"}
        description = {
            "version": self.version,
            "timestamp": moments[self.version - 1],
            "metadata": counts,
        }
        self._ds = SimpleNamespace(current_version=lambda: description)

    def version_refs(self) -> list[dict[str, int]]:
        return [{"version": number + 1} for number in range(len(self.moments))]

    def checkout_version(self, version: int) -> CommittedAt:
        self.opened.add(version)
        return CommittedAt(*self.moments, version=version, opened=self.opened)


def test_a_version_is_of_the_same_moment_in_every_time_zone(
    table: str, clocks_go_back: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (incarnation_of(CommittedAt(at)) for at in clocks_go_back)  # type: ignore[arg-type]
    assert [first, second] == [f"{at // 1000}-1-1" for at in clocks_go_back]
    monkeypatch.setattr(DatasetRef, "open_latest", lambda _: CommittedAt(*clocks_go_back))
    for index, at in enumerate(clocks_go_back):
        moment = datetime.fromtimestamp(at // 10**9, UTC).isoformat()
        assert resolve(table, timestamp=moment).version == index + 1


@pytest.mark.parametrize("skew_s", [0, 3600, -3600])
@pytest.mark.parametrize("step_s", [1, 60, 7200])
def test_a_timestamp_is_found_by_few_reads_beside_a_writer_whose_clock_is_an_hour_off(
    skew_s: int, step_s: int
) -> None:
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    seconds = [start + number * step_s + (skew_s if number % 2 else 0) for number in range(1000)]
    asked = {*seconds[::97], *(at + 1 for at in seconds[:6]), seconds[-1] + 7200}
    for second in asked:
        committed = CommittedAt(*(at * 10**9 for at in seconds))
        found = version_at(committed, datetime.fromtimestamp(second, UTC))  # type: ignore[arg-type]
        assert found == max((n + 1 for n, at in enumerate(seconds) if at <= second), default=None)
        assert len(committed.opened) <= 40


def test_the_versions_of_two_clocks_are_read_by_time(tmp_path: Path) -> None:
    """Manifests with other times on disk, as another machine would write."""
    path, start = str(tmp_path / "clocks.lance"), int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    for number in range(12):
        lance.write_dataset(pa.table({"id": [number]}), path, mode="append" if number else "create")
    moments = [start + number * 60 + 3600 * (number % 2) for number in range(12)]
    for number, at in enumerate(moments):
        set_time(Path(path), number + 1, at)
    for at in moments:
        newest = max(number + 1 for number, other in enumerate(moments) if other <= at)
        moment = datetime.fromtimestamp(at + 1, UTC).isoformat()
        assert resolve(path, timestamp=moment).version == newest


def set_time(table: Path, version: int, second: int) -> None:
    """Replaces the time of a commit, a number of as many bytes, in a manifest."""
    (manifest,) = (table / "_versions").glob(f"{(1 << 64) - 1 - version}.manifest")
    (current,) = [
        v["timestamp"] for v in lance.dataset(str(table)).versions() if v["version"] == version
    ]
    old, new = varint(int(current.timestamp())), varint(second)
    content = manifest.read_bytes()
    assert len(old) == len(new) and content.count(old) >= 1
    manifest.write_bytes(content.replace(old, new))


def varint(number: int) -> bytes:
    groups = []
    while number:
        groups.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
    return bytes(groups)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"branch": "audit"}, 15),
        ({"branch": "main"}, None),
        ({"version": "audit"}, 15),
        ({"branch": "audit", "version": "1"}, 10),
        ({"branch": "audit", "version": "audit:2"}, 15),
        ({"version": "of_audit"}, 15),
        ({"branch": "audit", "version": "of_audit"}, 15),
        ({"branch": "audit", "version": "main:1"}, "is of another branch"),
        ({"branch": "audit", "version": "of_main"}, "is of another branch"),
        ({"branch": "main", "version": "of_audit"}, "is of another branch"),
        ({"branch": "audits"}, "Branch audits does not exist"),
    ],
)
def test_a_branch_is_named_by_an_option(
    table: str, options: dict[str, str], rows: int | str | None
) -> None:
    branch = lance.dataset(table).create_branch("audit", 1)
    lance.write_dataset(pa.table({"id": range(5)}), branch, mode="append")
    lance.dataset(table).tags.create("of_audit", ("audit", 2))
    lance.dataset(table).tags.create("of_main", 2)
    if isinstance(rows, str):
        with pytest.raises((OptionError, VersionNotFoundError), match=rows):
            resolve(table, **options)
        return
    ref = resolve(table, **options)
    assert ref.open().count_rows() == (lance.dataset(table).count_rows() if rows is None else rows)
    again = DatasetRef.of_snapshot_json(ref.snapshot_json(), ())
    assert again == ref == pickle.loads(pickle.dumps(ref)) and again.table_uri == table
    by_location = resolve(ref.uri, version=str(ref.version))
    assert by_location == ref and resolve(f"{table}/tree/audit").uri == f"{table}/tree/audit"


def test_of_a_tag_and_a_branch_of_one_name_the_tag_is_meant(table: str) -> None:
    lance.dataset(table).create_branch("both", 1)
    lance.dataset(table).tags.create("both", 2)
    assert (
        resolve(table, version="both").version == 2 and resolve(table, branch="both").version == 1
    )


def test_a_table_in_a_folder_named_as_that_of_branches_is_a_table(tmp_path: Path) -> None:
    for place in ("tree/b", "t/tree/b"):
        lance.write_dataset(pa.table({"id": range(3)}), str(tmp_path / place))
    lance.write_dataset(pa.table({"id": range(2)}), str(tmp_path / "t"))
    for place in ("tree/b", "t/tree/b"):
        ref = resolve(str(tmp_path / place))
        assert ref.branch is None and ref.table_uri == ref.uri and ref.open().count_rows() == 3


@pytest.mark.parametrize("version_name", ["99", "nosuchtag", "nosuchbranch:1", "main:99"])
def test_a_missing_version_is_an_error_that_tells_the_latest(table: str, version_name: str) -> None:
    with pytest.raises(VersionNotFoundError, match=r"(?i)the latest version is 3\.") as caught:
        resolve(table, version=version_name)
    assert caught.value.version == version_name


def test_a_table_recreated_at_the_same_place_is_not_the_pinned_table(table: str) -> None:
    ref = resolve(table)
    assert ref.open().count_rows() == 30
    shutil.rmtree(table)
    for number in range(3):
        lance.write_dataset(
            pa.table({"id": range(10)}), table, mode="append" if number else "create"
        )
    other_process = pickle.loads(pickle.dumps(ref))
    from lance_spark import dataset

    dataset._open_pinned.cache_clear()
    with pytest.raises(SnapshotError, match="recreated"):
        other_process.open()


def test_the_dataset_is_opened_once_per_process(table: str) -> None:
    ref = resolve(table)
    ref.open()
    shutil.rmtree(table)
    assert pickle.loads(pickle.dumps(ref)).open().version == 3


def test_a_version_is_just_opened_for_a_minute(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = DatasetRef.at(table).pin(None)
    assert ref.is_just_opened() and not DatasetRef.at(table).is_just_opened()
    now_s = time.monotonic() + 61
    monkeypatch.setattr("lance_spark.dataset.time", SimpleNamespace(monotonic=lambda: now_s))
    assert not ref.is_just_opened()
    assert DatasetRef.at(table).pin(None).is_just_opened()


def test_cached_metadata_has_a_limit_in_bytes(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_sessions, "_METADATA_BYTES", 64 << 10)
    ref = DatasetRef.at(table)
    for _ in range(20):
        lance.write_dataset(pa.table({"id": range(10)}), table, mode="append")
        assert ref.open_latest().count_rows("id > 5") > 0
    assert lance_sessions.session_of(ref.uri).size_bytes() < 80 << 10


def test_the_cache_of_a_large_table_holds_its_metadata(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = DatasetRef.at(table)
    ref.open_latest()
    small = lance_sessions.session_of(ref.uri)
    monkeypatch.setattr(lance_sessions, "_LARGE_TABLE", 3)
    ref.open_latest()
    assert lance_sessions.session_of(ref.uri) is not small


def test_other_folders_are_distinguished_from_tables(tmp_path: Path, table: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for folder in ("none", "empty"):
        with pytest.raises(TableNotFoundError):
            resolve(str(tmp_path / folder))
    with pytest.raises(TableUnreadableError, match="it is a file"):
        resolve(str(tmp_path / "file"))
    with pytest.raises(OptionError, match="scheme"):
        resolve("nosuch://bucket/t")
    with pytest.raises(OptionError, match="path"):
        DatasetRef.resolve(ReadOptions.parse({}))
    for manifest in Path(table, "_versions").glob("*.manifest"):
        manifest.write_bytes(b"junk")
    with pytest.raises(TableUnreadableError):
        resolve(table)


def test_a_folder_that_cannot_be_listed_has_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance.write_dataset(pa.table({"id": range(3)}), str(tmp_path / "tree" / "b"))

    def refuse(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr("os.scandir", refuse)
    assert not table_exists(str(tmp_path), {})
    assert resolve(str(tmp_path / "tree" / "b")).open().count_rows() == 3


def test_an_unreachable_store_is_not_a_missing_table() -> None:
    storage = {
        "aws_access_key_id": "x",
        "aws_secret_access_key": "y",
        "aws_region": "us-east-1",
        "aws_endpoint": "http://127.0.0.1:1",
        "allow_http": "true",
        "client_max_retries": "0",
    }
    start = time.monotonic()
    with pytest.raises(TableUnreadableError):
        table_exists("s3://bucket/t.lance", storage)
    assert time.monotonic() - start < 30


def test_a_folder_with_versions_is_a_table(tmp_path: Path, table: str) -> None:
    (tmp_path / "started" / "data").mkdir(parents=True)
    assert table_exists(table, {})
    assert not table_exists(str(tmp_path / "started"), {})


def test_locations_have_one_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = str(tmp_path / "a b.lance")
    for form in (
        plain,
        plain + "/",
        "a b.lance",
        f"file://{plain}",
        f"file:{plain}",
        f"file://{plain}".replace(" ", "%20"),
    ):
        assert normalize_uri(form) == plain
    assert normalize_uri("s3://b/t.lance/") == "s3://b/t.lance"


def test_secrets_are_not_in_the_textual_form_nor_in_what_travels_in_metadata(table: str) -> None:
    ref = DatasetRef.at(table, {"aws_secret_access_key": "hunter2"})
    assert "hunter2" not in repr(ref)
    assert "hunter2" not in ref.snapshot_json()


def test_threads_that_open_one_version_do_not_share_a_pylance_object(table: str) -> None:
    ref = resolve(table)

    def read_again_and_again(_: int) -> int:
        for _ in range(200):
            rows = ref.open().count_rows()
            # pylance borrows its object mutably here: "Already borrowed" if another thread uses the same object
            ref.open().read_transaction(2)
        return rows

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read_again_and_again, range(8))) == {30}
