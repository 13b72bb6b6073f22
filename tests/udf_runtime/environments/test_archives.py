"""Archives of local files while other processes change the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from udf_runtime import UdfDefinitionError
from udf_runtime.environments import archives


@pytest.mark.parametrize("moment", ["_list_files", "_zip_files"])
def test_a_file_that_vanishes_while_a_workspace_is_packed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    vanishing = tmp_path / "project" / "gone.py"
    vanishing.parent.mkdir()
    vanishing.write_text("")
    (vanishing.parent / "stays.py").write_text("")
    real = getattr(archives, moment)

    def vanish(folder_or_file: Any, *arguments: Any) -> Any:
        files = list(real(folder_or_file)) if moment == "_list_files" else None
        vanishing.unlink()
        return real(folder_or_file, *arguments) if files is None else files

    monkeypatch.setattr(archives, moment, vanish)
    with pytest.raises(
        UdfDefinitionError, match=rf"workspace archive cannot be made: .*{vanishing}"
    ):
        archives.workspace_archive(str(vanishing.parent), str(tmp_path))
    assert list(tmp_path.iterdir()) == [vanishing.parent]
