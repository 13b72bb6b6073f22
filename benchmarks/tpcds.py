"""Compares TPC-DS on Lance with Parquet: `python -m benchmarks.tpcds [--scale 0.3] [--rounds 2] [--only
q03,q42]`.

The tables and the 99 queries come from DuckDB's extension for TPC-DS, in an environment of its own
from PyPI, because the extension needs its own release of DuckDB. A query that Spark does not accept
in DuckDB's dialect is left out, with Spark's reason.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.report import make_parser
from benchmarks.tpch import add_choices, compare

_EXTENSION = "duckdb-extension-tpcds==1.5.5"

_GENERATE = """
import pathlib, sys
import duckdb, duckdb_extension_tpcds

folder, scale = pathlib.Path(sys.argv[1]), float(sys.argv[2])
[extension] = pathlib.Path(duckdb_extension_tpcds.__file__).parent.rglob("*.duckdb_extension")
database = duckdb.connect()
database.execute(f"LOAD '{extension}'")
database.execute("CALL dsdgen(sf => ?)", [scale])
for name in ("generated", "queries"):
    (folder / name).mkdir()
for (table,) in database.execute("SELECT table_name FROM duckdb_tables()").fetchall():
    database.execute(f"COPY {table} TO '{folder}/generated/{table}.parquet'")
for number, query in database.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall():
    (folder / "queries" / f"q{number:02}.sql").write_text(query.strip().rstrip(";"), encoding="utf-8")
"""


def main() -> None:
    """Runs the configurations, prints a table, and writes `tpcds.json` and `tpcds.png`."""
    parser = make_parser("tpcds", __doc__)
    parser.add_argument(
        "--scale", type=float, default=0.3, help="TPC-DS's scale factor, 1 = 2.9 M store sales"
    )
    add_choices(parser, [f"q{number:02}" for number in range(1, 100)])
    compare("tpcds", write_inputs, parser.parse_args())


def write_inputs(folder: Path, scale: float) -> None:
    """Writes the tables to `generated` and the queries to `queries`."""
    environment = folder / "environment"
    uv = [sys.executable, "-m", "uv"]
    python = environment / "bin" / "python"
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, _EXTENSION], check=True)
    subprocess.run([python, "-c", _GENERATE, folder, str(scale)], check=True)


if __name__ == "__main__":
    main()
