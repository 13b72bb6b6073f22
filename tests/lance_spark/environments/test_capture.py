"""The whole environment of this process, captured for executors: minutes, and hundreds of megabytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lance_spark import Connection, Table, udf

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[3]


def test_this_projects_own_environment_is_captured_and_runs(
    table: Table, db: Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    manifest = db.capture_local_environment()
    assert [archive.role for archive in manifest.archives] == ["workspace", "site-packages"]

    @udf(data_type=pa.string(), manifest=manifest)
    def shout(text: str) -> str:
        import lance
        import numpy as np
        import pandas as pd
        import pyspark

        import benchmarks  # of the working directory
        import lance_spark

        for module in (lance, lance_spark, np, pd, pyspark, benchmarks):
            if "/archives/" not in str(module.__file__ or module.__path__):
                raise ImportError(f"{module} is not of the archive")
        return text.upper()

    table.add_columns({"shout": shout})
    assert table.backfill("shout").rows_computed == 60
    assert table.count_rows("shout = upper(text)") == 60
    assert db.capture_local_environment().checksum == manifest.checksum  # nothing is uploaded twice
