"""Archives of what lies on this machine, while others change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from udf_runtime import UdfDefinitionError
from udf_runtime.environments import archives


@pytest.mark.parametrize("moment", ["_files_below", "_zipped"])
def test_a_file_that_vanishes_while_a_workspace_is_packed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    gone = tmp_path / "project" / "gone.py"
    gone.parent.mkdir()
    gone.write_text("")
    (gone.parent / "stays.py").write_text("")
    real = getattr(archives, moment)

    def vanish(given: Any, *arguments: Any) -> Any:
        found = list(real(given)) if moment == "_files_below" else None
        gone.unlink()
        return real(given, *arguments) if found is None else found

    monkeypatch.setattr(archives, moment, vanish)
    with pytest.raises(UdfDefinitionError, match=rf"workspace archive cannot be made: .*{gone}"):
        archives.workspace_archive(str(gone.parent), str(tmp_path))
    assert list(tmp_path.iterdir()) == [gone.parent]
