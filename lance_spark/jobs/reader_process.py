"""A child process that decodes the tables next to the data: damaged files cannot end the parent.

The parent writes one JSON request per call into the child's standard input. The child answers with
an Arrow IPC stream or with a JSON error. The parent validates the Arrow data before any code reads
the data. If the child ends, the next call starts another child.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from importlib.abc import MetaPathFinder
from typing import Any

import pyarrow as pa

from lance_spark.dataset import DatasetRef, forget_open_datasets
from lance_spark.errors import LanceSparkError, TableNotFoundError, TableUnreadableError, rebuild
from lance_spark.jobs.table_files import UNREADABLE, DamagedFile, compact, decode_rows, delete_rows
from lance_spark.lance_compat import load_lance
from lance_spark.locations import is_local
from udf_runtime.execute.isolation.protocol.frames import (
    Tag,
    read_frame,
    wait_readable,
    write_frame,
)

_ANSWER_TIMEOUT_S = 60.0
"""Longest wait for the child, which decodes a large history in seconds. Other threads wait as long
for their turn."""

_STORE_TIMEOUT_S = 300.0
"""Additional wait for an object store: Lance repeats requests for as long."""

_MEMORY_BYTES = 4 << 30
"""Memory of the child. A forged file with a larger demand ends the child."""

_DAMAGED_KEY = b"damaged"
_FORGET = "forget"
_OPERATIONS: dict[str, Callable[..., None]] = {"delete": delete_rows, "compact": compact}
_TYPED: dict[str, type[LanceSparkError]] = {
    error.__name__: error for error in (TableNotFoundError, TableUnreadableError)
}


class ReaderEndedError(Exception):
    """The child ended, or gave no answer in time. Callers convert this error to their own."""


class RefusedError(Exception):
    """The child raised an error. The message is the error's text."""


class ReaderProcess:
    """A child process. Serves a call at a time, in the process that started the child."""

    def __init__(self) -> None:
        """Starts the child, without waiting for its readiness."""
        # -P: a module in the working directory, which others may write to, is never imported.
        # Without buffers: frames are written and read through the descriptors themselves.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lance_spark.jobs.reader_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert (
            self._process.stdin is not None and self._process.stdout is not None
        )  # both are pipes
        self._input, self._output = self._process.stdin, self._process.stdout

    def call(self, request: dict[str, Any], *, timeout_s: float) -> tuple[Tag, pa.Buffer]:
        """Returns the answer to a request. Ends a child without an answer in time.

        Raises:
            ReaderEndedError: The child ended, or gave no answer in time.
        """
        answers, answer = True, None
        try:
            write_frame(self._input.fileno(), Tag.ASK, json.dumps(request).encode())
            answers = wait_readable(self._output.fileno(), timeout_s)
            answer = read_frame(self._output.fileno()) if answers else None
        except OSError:
            pass
        if answer is None:
            self.close()
            why = (
                f"ended with {self._process.returncode}"
                if answers
                else f"gave no answer within {timeout_s:.0f} s"
            )
            raise ReaderEndedError(f"the process that decodes it {why}")
        return answer

    @property
    def is_running(self) -> bool:
        """Tells whether the child can serve."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the child."""
        self._process.kill()
        self._process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Closes this process's ends of the pipes."""
        self._input.close()
        self._output.close()


_lock = threading.Lock()
_reader: ReaderProcess | None = None


def read_in_child(
    at: DatasetRef,
    schema: pa.Schema,
    filter: str | None,
    fragment_ids: list[int] | None = None,
    *,
    most: int | None = None,
) -> tuple[pa.Table, list[DamagedFile]]:
    """Decodes rows in the child, as :func:`~lance_spark.jobs.table_files.decode_rows` does.

    Raises:
        TableNotFoundError: The table does not exist.
        TableUnreadableError: The manifest is damaged, or the store refused.
        ReaderEndedError: A file ended the child.
    """
    columns = base64.b64encode(schema.serialize()).decode()
    payload = _call(at, "read", schema=columns, filter=filter, fragment_ids=fragment_ids, most=most)
    with pa.ipc.open_stream(payload) as reader:
        table = reader.read_all()
    table.validate(full=True)
    damaged = json.loads((table.schema.metadata or {}).get(_DAMAGED_KEY, b"[]"))
    return table.cast(schema), [DamagedFile(**file) for file in damaged]


def change_in_child(at: DatasetRef, operation: str, **arguments: str) -> None:
    """Runs `delete` or `compact` of :mod:`~lance_spark.jobs.table_files` in the child.

    Raises:
        ReaderEndedError: A file ended the child.
        RefusedError: The operation failed.
    """
    _call(at, operation, **arguments)


def _call(at: DatasetRef, operation: str, **arguments: object) -> pa.Buffer:
    request = {
        "operation": operation,
        "uri": at.uri,
        "storage_options": at.storage_options,
        **arguments,
    }
    timeout_s = _ANSWER_TIMEOUT_S if is_local(at.uri) else _ANSWER_TIMEOUT_S + _STORE_TIMEOUT_S
    with _lock:
        tag, payload = _running_reader().call(request, timeout_s=timeout_s)
    if tag is Tag.DATA:
        return payload
    error = json.loads(payload.to_pybytes())
    if error["type"] in _TYPED:
        raise rebuild(_TYPED[error["type"]], (error["message"],), {"uri": at.uri})
    raise RefusedError(error["message"])


def _running_reader() -> ReaderProcess:
    global _reader  # noqa: PLW0603 - one child per process
    if _reader is None or not _reader.is_running:
        _reader = ReaderProcess()
    return _reader


def _forget_reader() -> None:
    """Leaves the child to the parent process after a fork."""
    global _lock, _reader
    if _reader is not None:
        _reader.close_pipes()
    _lock, _reader = threading.Lock(), None


def empty_caches() -> None:
    """Empties the child's caches. A file may have been damaged since the last read."""
    with _lock, contextlib.suppress(ReaderEndedError):  # the next child has empty caches
        if _reader is not None and _reader.is_running:
            _reader.call({"operation": _FORGET}, timeout_s=_ANSWER_TIMEOUT_S)


def _close_reader() -> None:
    """Ends the child. The next call starts another child."""
    if _reader is not None:
        _reader.close()


os.register_at_fork(after_in_child=_forget_reader)
atexit.register(_close_reader)


def _answer(request: dict[str, Any]) -> pa.Buffer:
    """Executes a request. Runs in the child."""
    if request["operation"] == _FORGET:
        forget_open_datasets()
        return pa.py_buffer(b"")
    options = tuple((name, value) for name, value in request.pop("storage_options"))
    at = DatasetRef(uri=request.pop("uri"), storage_options=options)
    operation = request.pop("operation")
    if operation != "read":
        _OPERATIONS[operation](at, **request)
        return pa.py_buffer(b"")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(request.pop("schema"))))
    rows, damaged = decode_rows(at, schema, **request)
    described = rows.replace_schema_metadata(
        {_DAMAGED_KEY: json.dumps([asdict(file) for file in damaged])}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, described.schema) as writer:
        writer.write_table(described)
    return sink.getvalue()


def _describe(error: Exception) -> bytes:
    return json.dumps({"type": type(error).__name__, "message": str(error)}).encode()


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # no such limit on this system
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))


class _NoPandas(MetaPathFinder):
    """Hides pandas from imports."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Refuses pandas.

        Raises:
            ModuleNotFoundError: The module is pandas.
        """
        if fullname == "pandas":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _import_lance() -> None:
    """Imports Lance without pandas, which PyArrow would import for its datasets.

    The child makes no DataFrame, and starts in 0.55 instead of 0.9 seconds (measured).
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    importlib.import_module("pyarrow.dataset")
    sys.meta_path.remove(finder)
    load_lance()


def main() -> None:
    """Answers requests until the parent closes the pipe."""
    _limit_memory()
    _import_lance()
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # prints of libraries go to standard error
    while (frame := read_frame(requests)) is not None:
        try:
            answer = _answer(json.loads(frame[1].to_pybytes()))
        except (*UNREADABLE, LanceSparkError) as error:
            write_frame(answers, Tag.REFUSED, _describe(error))
        else:
            write_frame(answers, Tag.DATA, answer)


if __name__ == "__main__":
    main()
