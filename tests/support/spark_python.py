"""Spark's Python archives, compiled once for all workers of the tests: `python -m tests.support.spark_python` adds the
bytecode.

Spark puts `pyspark.zip` before the installed package in the path of each worker. Python keeps no bytecode of an
archive, so each daemon of workers compiles its imports: 0.9 of 1.1 seconds of processor time (measured). Another
version of Python ignores the bytecode.
"""

from __future__ import annotations

import importlib
import importlib.util
import marshal
import pkgutil
import sys
import zipfile
from pathlib import Path

import pyspark
import pyspark.sql.worker

ARCHIVES = Path(pyspark.__file__).parent / "python" / "lib"
_UNCHECKED = b"\x01\0\0\0"
"""Flags of unchecked bytecode, which Python never compares with the source."""


def imported() -> set[str]:
    """Imports the modules of workers, and returns the paths of all modules of Spark and Py4J below a folder of the
    path.
    """
    workers = [
        f"pyspark.sql.worker.{module.name}"
        for module in pkgutil.iter_modules(pyspark.sql.worker.__path__)
    ]
    for name in ("pyspark.daemon", "pyspark.worker", "pyspark.sql.connect.session", *workers):
        importlib.import_module(name)
    modules = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in {"pyspark", "py4j"}
    }
    return {
        name.replace(".", "/") + ("/__init__.py" if hasattr(module, "__path__") else ".py")
        for name, module in modules.items()
    }


def compile_archive(archive: Path, paths: set[str]) -> None:
    """Replaces an archive by a copy with the bytecode of these modules. Hard links to the old file keep the old
    contents.
    """
    temporary = archive.with_suffix(".tmp")
    with (
        zipfile.ZipFile(archive) as source,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            text = source.read(entry)
            if entry.filename.endswith(".pyc"):
                continue
            target.writestr(entry, text)
            if entry.filename in paths:
                code = compile(text, f"{archive}/{entry.filename}", "exec", dont_inherit=True)
                header = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(text)
                target.writestr(f"{entry.filename}c", header + marshal.dumps(code))
    temporary.replace(archive)


if __name__ == "__main__":
    paths = imported()
    for archive in ARCHIVES.glob("*.zip"):
        compile_archive(archive, paths)
