"""The copy of this package for processes of other environments."""

from __future__ import annotations

import importlib.resources
import shutil
from pathlib import Path

import pytest

from udf_runtime.environments.runtime_files import runtime_folder


def test_the_package_is_read_once_by_a_process_and_copied_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(package: str) -> None:
        raise AssertionError(f"{package} is read again")

    copy_folder = runtime_folder(str(tmp_path))
    monkeypatch.setattr(importlib.resources, "files", refuse)
    assert runtime_folder(str(tmp_path)) == copy_folder
    copied = {path.relative_to(copy_folder) for path in Path(copy_folder).rglob("*.py")}
    assert Path("udf_runtime/environments/runtime_files.py") in copied
    shutil.rmtree(copy_folder)
    assert runtime_folder(str(tmp_path)) == copy_folder
    assert {path.relative_to(copy_folder) for path in Path(copy_folder).rglob("*.py")} == copied
