"""The store: lookups, refused entries, and cleanup."""

from __future__ import annotations

import logging
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_runtime.checkpoint import (
    CheckpointEntry,
    CheckpointKey,
    CheckpointStore,
    ColumnFileReference,
    LocalObjects,
    source_digest,
)
from udf_runtime.checkpoint.codec import encode

KEY = CheckpointKey(udf_name="double", udf_version="1", inputs=(0,), output_type="int64")
OTHER_KEY = replace(KEY, udf_version="2")
SOURCE, ELSEWHERE = source_digest(["a.lance:0"]), source_digest(["b.lance:0"])


class Memory:
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.broken = False

    def put(self, path: str, data: bytes) -> None:
        self._check()
        self.found[path] = data

    def get(self, path: str) -> bytes | None:
        self._check()
        return self.found.get(path)

    def list(self, prefix: str) -> list[str]:
        self._check()
        return sorted(path for path in self.found if path.startswith(f"{prefix}/"))

    def delete(self, path: str) -> None:
        self._check()
        self.found.pop(path, None)

    def remove_leftovers(self, prefix: str, *, older_than_s: float) -> int:
        return 0

    def _check(self) -> None:
        if self.broken:
            raise OSError("the store is on fire")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(LocalObjects(str(tmp_path)))


def write(
    store: CheckpointStore, rows: Any, *, key=KEY, source=SOURCE, job="job"
) -> CheckpointEntry:
    offsets = pa.array(list(rows), pa.int64())
    values = pa.array([None if row % 5 == 0 else row * 2 for row in rows], pa.int64())
    return store.write(key, source, job_id=job, offsets=offsets, values=values)


def rows_of(store: CheckpointStore, entry: CheckpointEntry) -> list[int]:
    content = store.read(entry, KEY, SOURCE)
    assert content is not None
    offsets, values = content
    assert offsets.type == pa.int64()
    assert values.to_pylist() == [None if row % 5 == 0 else row * 2 for row in offsets.to_pylist()]
    return list(offsets.to_pylist())


@given(st.sets(st.integers(0, 2**33), max_size=30), st.sampled_from([pa.uint32(), pa.int64()]))
def test_offsets_and_values_come_back(rows: set[int], kind: pa.DataType) -> None:
    store = CheckpointStore(Memory())
    ascending = sorted(row for row in rows if kind == pa.int64() or row < 2**32)
    values = pa.array([None if row % 2 else str(row) for row in ascending], pa.string())
    entry = store.write(KEY, SOURCE, job_id="j", offsets=pa.array(ascending, kind), values=values)
    assert store.find(KEY, SOURCE) == [entry]
    assert entry.rows == len(ascending)
    if ascending:
        assert (entry.start, entry.stop) == (ascending[0], ascending[-1] + 1)
    content = store.read(entry, KEY, SOURCE)
    assert content is not None
    assert content[0].to_pylist() == ascending and content[1].equals(values)


def test_every_type_of_value_comes_back_as_one_array(store: CheckpointStore) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype=np.float32)), 4)
    structs = pa.array([{"a": 1, "b": None}, None])
    extension = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16))
    )
    for values in (vectors, structs, extension, pa.nulls(2), pa.array(["cut", "a", None]).slice(1)):
        entry = store.write(KEY, SOURCE, job_id="j", offsets=pa.array([4, 9]), values=values)
        content = store.read(entry, KEY, SOURCE)
        assert content is not None and isinstance(content[1], pa.Array)
        assert content[1].equals(values) and content[1].type == values.type
    entry = store.write(
        KEY, SOURCE, job_id="j", offsets=pa.array([], pa.int64()), values=vectors.slice(0, 0)
    )
    content = store.read(entry, KEY, SOURCE)
    assert (
        content is not None
        and content[1].type == vectors.type
        and len(content[0]) == len(content[1]) == 0
    )


def test_only_the_same_key_and_source_find_an_entry(store: CheckpointStore) -> None:
    late, early = write(store, range(100, 200)), write(store, range(100), job="another/job")
    elsewhere = write(store, range(7), source=ELSEWHERE)
    assert store.find(KEY, SOURCE) == [early, late]
    assert [entry.job_id for entry in store.find(KEY, SOURCE)] == ["another/job", "job"]
    assert store.find(KEY, ELSEWHERE) == [elsewhere]
    assert store.find(OTHER_KEY, SOURCE) == []
    assert store.sources(KEY) == {SOURCE, ELSEWHERE} and store.sources(OTHER_KEY) == set()
    assert store.find_all(KEY) == {SOURCE: [early, late], ELSEWHERE: [elsewhere]}
    assert pickle.loads(pickle.dumps(store)).find(KEY, SOURCE) == [early, late]


def test_two_writers_of_one_range_do_not_clash(store: CheckpointStore) -> None:
    first, second = write(store, range(10)), write(store, range(10))
    assert first.path != second.path
    assert sorted(store.find(KEY, SOURCE), key=lambda e: e.path) == sorted(
        [first, second], key=lambda e: e.path
    )
    store.delete(first)
    store.delete(first)
    assert rows_of(store, second) == list(range(10))


def reference_to(data_file: str) -> ColumnFileReference:
    return {
        "data_file": data_file,
        "size_bytes": 17,
        "rows": {"computed": "cg=="},
        "context": {"version": 3, "nested": [1, None]},
    }


def test_references_to_column_files_of_several_fragments_come_back(store: CheckpointStore) -> None:
    values = write(store, range(3))
    group = store.write_references(
        KEY, {SOURCE: reference_to("x.lance"), ELSEWHERE: reference_to("y.lance")}, job_id="j"
    )
    assert {entry.kind for entry in store.list_entries(KEY)} == {"values", "references"}
    found = store.find_all(KEY)
    (reference,) = [entry for entry in found[SOURCE] if entry.kind == "reference"]
    (elsewhere,) = found[ELSEWHERE]
    assert values in found[SOURCE] and store.sources(KEY) == {SOURCE, ELSEWHERE}
    assert (reference.path, reference.job_id, reference.rows) == (group.path, "j", 0)
    assert store.read_reference(reference, KEY, SOURCE) == reference_to("x.lance")
    assert store.read_reference(elsewhere, KEY, ELSEWHERE) == reference_to("y.lance")
    assert store.column_files() == {"x.lance", "y.lance"}
    assert store.column_files(keep=lambda key, source: (key, source) == (KEY.digest, SOURCE)) == {
        "x.lance"
    }
    store.delete(group)
    assert store.find_all(KEY) == {SOURCE: [values]} and store.column_files() == set()


def test_a_reference_of_an_earlier_release_comes_back(store: CheckpointStore) -> None:
    header = {
        "kind": "reference",
        "key": KEY.digest,
        "source": SOURCE,
        "job": "j",
        **reference_to("x.lance"),
    }
    path = f"checkpoints/{KEY.digest}/{SOURCE}/file.j.0123456789abcdef.ref"
    store.objects.put(path, encode(header, pa.table({})))
    (entry,) = store.find(KEY, SOURCE)
    assert (entry.kind, entry.job_id) == ("reference", "j")
    assert store.read_reference(entry, KEY, SOURCE) == reference_to("x.lance")
    assert store.column_files() == {"x.lance"}
    store.delete(entry)
    assert store.read_reference(entry, KEY, SOURCE) is None


def test_damaged_references_are_none(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    group = store.write_references(KEY, {SOURCE: reference_to("x.lance")}, job_id="j")
    file = file_of(store, group)
    payload = file.read_bytes()
    file.write_bytes(payload[:-1])
    assert store.find_all(KEY) == {} and store.column_files() == set()
    header = {
        "kind": "references",
        "key": KEY.digest,
        "source": "",
        "job": "j",
        "references": [{"source": SOURCE}, 7],
    }
    file.write_bytes(encode(header, pa.table({})))
    assert store.find_all(KEY) == {}
    assert group.path in caplog.text


@pytest.mark.parametrize(
    "forged", [{"data_file": ["x"]}, {"size_bytes": "x"}, {"rows": "x"}, {"context": 1}]
)
def test_references_of_other_types_are_none(store: CheckpointStore, forged: dict[str, Any]) -> None:
    """The checksum of a forged entry is right."""
    body = {"source": SOURCE, **reference_to("x.lance"), **forged}
    header = {
        "kind": "references",
        "key": KEY.digest,
        "source": "",
        "job": "j",
        "references": [body],
    }
    store.objects.put(
        f"checkpoints/{KEY.digest}/files.j.0123456789abcdef.ref", encode(header, pa.table({}))
    )
    assert store.find_all(KEY) == {} and store.column_files() == set()


def file_of(store: CheckpointStore, entry: CheckpointEntry) -> Path:
    assert isinstance(store.objects, LocalObjects)
    return Path(store.objects.root, entry.path)


def test_an_entry_that_is_gone_is_not_there(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    entry = write(store, range(10))
    store.delete(entry)
    assert store.read(entry, KEY, SOURCE) is None
    assert caplog.records == []


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * len(b), lambda b: b + b"x"],
)
def test_a_damaged_entry_is_not_used_and_said_so_once(
    store, damage, caplog: pytest.LogCaptureFixture
) -> None:
    entry = write(store, range(10))
    file = file_of(store, entry)
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert store.read(entry, KEY, SOURCE) is None
    assert len(caplog.records) == 1 and entry.path in caplog.text


def test_an_entry_of_another_key_source_or_job_is_not_used(store: CheckpointStore, caplog) -> None:
    entry = write(store, range(10))
    payload = file_of(store, entry).read_bytes()
    for key, source, job in [
        (OTHER_KEY, SOURCE, "job"),
        (KEY, ELSEWHERE, "job"),
        (KEY, SOURCE, "thief"),
    ]:
        foreign = write(store, range(10), key=key, source=source, job=job)
        file_of(store, foreign).write_bytes(payload)
        assert store.read(foreign, key, source) is None
    assert caplog.text.count("belongs to something else") == 3


def test_a_file_under_a_name_that_says_something_else_is_not_used(
    store: CheckpointStore, caplog
) -> None:
    entry = write(store, range(10))
    path = entry.path.replace("/0-10.10.", "/0-20.10.")
    os.rename(file_of(store, entry), Path(file_of(store, entry).parent, path.rpartition("/")[2]))
    (renamed,) = store.find(KEY, SOURCE)
    assert (renamed.start, renamed.stop) == (0, 20)
    assert store.read(renamed, KEY, SOURCE) is None
    assert "what its name says" in caplog.text


def test_a_well_formed_file_of_other_columns_is_not_used(store: CheckpointStore, caplog) -> None:
    entry = write(store, range(10))
    header = {
        "kind": "values",
        "key": KEY.digest,
        "source": SOURCE,
        "job": "job",
        "start": 0,
        "stop": 10,
        "rows": 10,
    }
    file_of(store, entry).write_bytes(encode(header, pa.table({"values": list(range(10))})))
    assert store.read(entry, KEY, SOURCE) is None
    assert store.read_reference(replace(entry, kind="reference"), KEY, SOURCE) is None


def test_other_files_in_the_folder_are_not_entries(store: CheckpointStore) -> None:
    entry = write(store, range(10))
    folder = file_of(store, entry).parent
    for name in (
        "README",
        "0-10.10.job.rows",
        "0-10.10.=ZZ.0123456789abcdef.rows",
        "0-10.10.job.0123456789abcdef.rows#1",
    ):
        Path(folder, name).write_bytes(b"x")
    assert store.find(KEY, SOURCE) == [entry]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 2], "for 3 values"),
        ([3, 2, 1], "ascending"),
        ([1, 1, 2], "ascending"),
        ([-1, 1, 2], "negative"),
        ([None, 1, 2], "NULL"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(
    store: CheckpointStore, offsets: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.write(
            KEY,
            SOURCE,
            job_id="j",
            offsets=pa.array(offsets, pa.int64()),
            values=pa.array([1, 2, 3]),
        )


def test_a_job_id_that_makes_no_file_name_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(ValueError, match="file name"):
        write(store, range(3), job="x" * 200)


def test_a_store_that_fails_is_an_error_and_not_a_missing_checkpoint() -> None:
    objects = Memory()
    store = CheckpointStore(objects)
    entry = write(store, range(3))
    objects.broken = True
    for act in (
        lambda: store.read(entry, KEY, SOURCE),
        lambda: store.find(KEY, SOURCE),
        lambda: store.sources(KEY),
        lambda: write(store, range(3)),
        lambda: store.delete(entry),
        lambda: store.cleanup(keep=lambda key, source: False),
    ):
        with pytest.raises(OSError, match="on fire"):
            act()


def test_a_cleanup_takes_what_is_not_kept_and_nothing_else(store: CheckpointStore) -> None:
    kept_entries = [write(store, range(3)), write(store, range(3, 6))]
    write(store, range(3), source=ELSEWHERE)
    doomed = write(store, range(3), key=OTHER_KEY)
    (file_of(store, doomed).parent / "stray").write_bytes(b"x")
    kept_files = store.write_references(
        KEY, {s: reference_to("x.lance") for s in (SOURCE, ELSEWHERE)}, job_id="j"
    )
    store.write_references(KEY, {ELSEWHERE: reference_to("y.lance")}, job_id="j")
    requests: list[tuple[str, str]] = []

    def keep(key: str, source: str) -> bool:
        requests.append((key, source))
        return (key, source) == (KEY.digest, SOURCE)

    assert store.cleanup(keep=keep) == 4
    assert sorted(requests) == sorted(
        [(KEY.digest, SOURCE), (KEY.digest, ELSEWHERE), (OTHER_KEY.digest, SOURCE)]
    )
    assert [entry for entry in store.list_entries(KEY) if entry.kind == "values"] == kept_entries
    assert store.column_files() == {"x.lance"} and kept_files in store.list_entries(KEY)
    assert store.find_all(OTHER_KEY) == {}
    assert not file_of(store, doomed).parent.parent.exists()


def test_a_cleanup_takes_the_checkpoints_of_successful_jobs(store: CheckpointStore) -> None:
    write(store, range(3), job="done")
    store.write_references(KEY, {SOURCE: reference_to("x.lance")}, job_id="done")
    kept_entry = write(store, range(3), job="job")
    assert store.cleanup(keep=lambda key, source: True, done_jobs={"done"}) == 2
    assert store.list_entries(KEY) == [kept_entry]


def test_ranges_without_gaps_need_no_room_for_offsets() -> None:
    objects = Memory()
    store = CheckpointStore(objects)
    values = pa.array([True] * 10_000)
    dense = store.write(
        KEY, SOURCE, job_id="j", offsets=pa.array(range(10_000), pa.int64()), values=values
    )
    assert len(objects.found[dense.path]) < 1_000
