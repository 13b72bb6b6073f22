"""Runs all habits with LanceDB: `python -m tests.lancedb_habits.lancedb_run FOLDER` prints JSON."""

from __future__ import annotations

import importlib
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from tests.lancedb_habits import searches, tables  # noqa: F401 - registers the habits
from tests.lancedb_habits.habit import HABITS, Helpers


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    lancedb = importlib.import_module("lancedb")
    names = types.SimpleNamespace()
    for module in ("lancedb.index", "lancedb.query"):
        names.__dict__.update(vars(importlib.import_module(module)))

    def index_text(table: Any, column: str) -> None:
        table.create_index(
            column, config=names.FTS(with_position=True, stem=False, remove_stop_words=False)
        )

    pydantic = importlib.import_module("lancedb.pydantic")
    helpers = Helpers(
        names=names,
        is_lancedb=True,
        index_text=index_text,
        modules={
            "lancedb": lancedb,
            "pydantic": pydantic,
            "rerankers": importlib.import_module("lancedb.rerankers"),
        },
    )
    results: dict[str, Any] = {"version": lancedb.__version__}
    for number, case in enumerate(HABITS.values()):
        try:
            results[case.name] = case.act(lancedb.connect(str(folder / str(number))), helpers)
        except Exception as error:  # noqa: BLE001 - shown beside the other results
            results[case.name] = f"{type(error).__name__}: {str(error)[:300]}"
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
