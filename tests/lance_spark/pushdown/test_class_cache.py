"""The compiled classes of the planner rule, from one session to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lance_spark.pushdown.class_cache import cache_file, load_classes, save_classes

CLASSES = {"lancespark/A.class": b"\xca\xfe", "lance/B.class": bytes(range(256))}


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = cache_file("source", "17")
    assert file is not None
    return file


def test_classes_come_back_for_the_same_texts_only(file: Path):
    assert load_classes(file) is None
    save_classes(file, CLASSES)
    assert load_classes(file) == CLASSES
    assert cache_file("source", "17") == file
    assert len({file, cache_file("source1", "7"), cache_file("source", "18"), cache_file("source17")}) == 4
    assert file.stat().st_mode & 0o077 == file.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [b"", b"PK", b"not a zip file"])
def test_a_damaged_file_is_not_read(file: Path, damage: bytes):
    save_classes(file, CLASSES)
    file.write_bytes(damage)
    assert load_classes(file) is None
    save_classes(file, CLASSES)
    assert load_classes(file) == CLASSES


def test_a_flipped_byte_is_found_out(file: Path):
    save_classes(file, CLASSES)
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :])
        assert load_classes(file) is None


def test_what_others_may_write_is_not_read(file: Path):
    save_classes(file, CLASSES)
    file.chmod(0o620)
    assert load_classes(file) is None
    file.chmod(0o600)
    file.parent.chmod(0o777)
    assert load_classes(file) is None


def test_a_folder_that_cannot_be_written_is_no_error(file: Path):
    file.parent.parent.write_text("a file where the folder would be")
    save_classes(file, CLASSES)
    assert load_classes(file) is None


def test_no_more_than_eight_files_are_kept(file: Path):
    for number in range(10):
        one = cache_file(str(number))
        assert one is not None
        save_classes(one, CLASSES)
        os.utime(one, (number, number))
    assert len(list(file.parent.iterdir())) == 8
    assert load_classes(one) == CLASSES


@pytest.mark.long
def test_a_second_session_compiles_nothing(file: Path):
    script = (
        "import time\n"
        "from pyspark.sql import SparkSession\n"
        "import lance_spark\n"
        "import lance_spark.pushdown.rule as rule\n"
        "compiled, compile = [], rule._compile\n"
        "rule._compile = lambda *arguments: (compiled.append(1), compile(*arguments))\n"
        "spark = lance_spark.configure(SparkSession.builder.master('local[1]')).getOrCreate()\n"
        "print(len(compiled), lance_spark.enable_pushdown(spark))\n"
    )
    answers = [
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert [answer.split() for answer in answers] == [["1", "True"], ["0", "True"]]
    assert file.parent.is_dir()
