"""Contestants in separate processes: `python -m benchmarks.table_api_child
loop|geneva|cold-lance-spark|cold-geneva|table`.

`loop` and `geneva` answer questions, a line of JSON each, until their input ends. The cold
contestants take a folder, fill a column of its
table, print a line and end. `table` makes a table, so its rows never occupy the memory of a
measured process. Runs in the environment of
the contestant, so it imports nothing of the other contestants.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parent.parent
_PATIENCE_S = 30


class Child:
    """A contestant in a separate process, for the timing process.

    Attributes:
        pid: Process id.
    """

    def __init__(
        self, python: str, kind: str, *arguments: str, module: str = "benchmarks.table_api_child"
    ) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))
        }
        self._process = subprocess.Popen(
            [python, "-m", module, kind, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
            env=environment,
        )
        self.pid = self._process.pid

    def ask(self, patience_s: float | None = None, **question: object) -> Any:
        """Sends a question, and waits for the answer; see :meth:`answer`."""
        self._process.stdin.write(json.dumps(question).encode() + b"\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return self.answer(patience_s)

    def answer(self, patience_s: float | None = None) -> Any:
        """Waits for a line of the child.

        Raises:
            TimeoutError: No line within `patience_s` seconds.
            RuntimeError: The child has ended.
        """
        if (
            patience_s is not None
            and not select.select([self._process.stdout], [], [], patience_s)[0]
        ):
            self._process.kill()
            raise TimeoutError
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            self._errors.seek(0)
            tail = self._errors.read()[-3000:].decode(errors="replace")
            raise RuntimeError(f"a contestant of the benchmark ended early: {tail}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process and its children."""
        self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._errors.close()


def geneva_version(python: str | None) -> str | None:
    """Returns the version of geneva in an interpreter's environment, or None."""
    if not python:
        return None
    probe = "import importlib.metadata as m; print(m.version('geneva'))"
    process = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    return process.stdout.strip() or None


def main() -> None:
    """Runs one contestant."""
    # Libraries print to standard output. The answers use a separate descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind, *arguments = sys.argv[1:]
    once = {
        "cold-lance-spark": _cold_lance_spark,
        "cold-geneva": _cold_geneva,
        "table": _make_table,
    }
    if kind in once:
        once[kind](*arguments)
        print(json.dumps("done"), file=answers, flush=True)
        return
    answer = {"loop": _loop, "geneva": _geneva}[kind]()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def _loop() -> Callable[[dict[str, Any]], object]:
    from benchmarks.table_api_work import WORKS, column_files, commit

    def answer(question: dict[str, Any]) -> object:
        work = WORKS[question["work"]]
        files = column_files(question["path"], question["column"], work, question.get("fragments"))
        if question["commit"]:
            commit(question["path"], files)
        return files

    return answer


def _geneva() -> Callable[[dict[str, Any]], object]:
    import geneva

    from benchmarks.table_api_work import WORKS

    def answer(question: dict[str, Any]) -> object:
        table = geneva.connect(question["folder"]).open_table("table")
        work = WORKS[question["work"]]
        if question["do"] == "add":
            function = geneva.udf(
                work.function(), data_type=work.data_type, version=question["column"]
            )
            table.add_columns({question["column"]: function})
            return None
        began = time.perf_counter()
        # Two workers for two cores: the default of 8 takes three times as long on such a machine.
        table.backfill(question["column"], concurrency=2)
        return time.perf_counter() - began

    return answer


def _make_table(path: str, rows: str, fragments: str) -> None:
    from benchmarks.table_api_work import make_table

    make_table(Path(path), int(rows), int(fragments))


def _cold_lance_spark(folder: str) -> None:
    import lance_spark
    from benchmarks.table_api_work import DOUBLE
    from udf_runtime import udf

    table = lance_spark.connect(folder, progress=False).open_table("table")
    table.add_columns({"cold": udf(DOUBLE.function(), data_type=DOUBLE.data_type)})
    table.backfill("cold")


def _cold_geneva(folder: str) -> None:
    import geneva

    from benchmarks.table_api_work import DOUBLE

    table = geneva.connect(folder).open_table("table")
    table.add_columns({"cold": geneva.udf(DOUBLE.function(), data_type=DOUBLE.data_type)})
    table.backfill("cold", concurrency=2)


if __name__ == "__main__":
    main()
