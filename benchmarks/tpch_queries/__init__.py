"""TPC-H's tables and 22 queries, with the validation parameters of the benchmark. Each query is a
SQL file."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")

QUERIES = {
    file.stem: file.read_text(encoding="utf-8").strip()
    for file in sorted(Path(__file__).parent.glob("q??.sql"))
}


def generate(folder: Path, scale: float) -> None:
    """Makes the tables as Parquet files, `<table>.parquet`. Scale 1 has 6 million line items."""
    program = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    subprocess.run(
        [program, "parquet", "--quiet", f"--scale-factor={scale}", f"--output-dir={folder}"],
        check=True,
    )
