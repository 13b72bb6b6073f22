"""Connections of a task to processes of its UDF: :class:`ProcessSource`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from udf_runtime.execute.isolation.owner import Owner
from udf_runtime.execute.isolation.process import ProcessSpec, UdfConnection, UdfProcess
from udf_runtime.execute.isolation.process_registry import ProcessRegistry

if TYPE_CHECKING:
    from udf_runtime.execute.call_context import CallContext


class ProcessSource:
    """Makes connections: to a process of their own, or to a single shared process. Thread-safe."""

    def __init__(self, context: CallContext, processes: ProcessSpec, *, is_shared: bool) -> None:
        """Pickles the UDF; starts no process yet."""
        self._udf = context.udf
        self._payload = context.udf.dumps()
        self._spec = processes
        self._chunks = context.chunks
        self._start = processes.interpreter.make_start(self._payload, context.chunks)
        self._is_shared = is_shared
        self._shared: UdfProcess | None = None
        self._is_new = False
        self._lock = threading.Lock()

    def connect(self) -> UdfConnection:
        """Returns a connection to a process; takes or starts a process if necessary.

        Raises:
            DevicesBusyError: The devices were not free in time.
            EnvironmentBuildError: The environment's interpreter is missing.
            ProcessEndedError: The process ended in the meantime.
        """
        registry = self._registry()
        if not self._is_shared:
            self._is_new = True
            return self._open(registry.start(self._udf, self._payload, self._spec))
        with self._lock:
            if self._shared is None or not self._shared.alive:
                self._shared = registry.take_or_start(self._udf, self._payload, self._spec)
                self._is_new = not self._shared.is_loaded
            return self._open(self._shared)

    def note_answer(self) -> None:
        """Ends idle processes of other UDFs if a new process, now loaded, needs their memory."""
        if self._is_new:
            self._is_new = False
            self._registry().make_room()

    def _registry(self) -> ProcessRegistry:
        return ProcessRegistry(self._spec.owner or Owner.current())

    def kill(self, connection: UdfConnection) -> None:
        """Kills the process of a connection."""
        connection.drop()
        connection.process.kill()

    def close(self, connections: Iterable[UdfConnection], *, is_busy: bool) -> None:
        """Ends processes in order; leaves a shared process idle for other tasks.

        Args:
            connections: The idle connections.
            is_busy: Whether another thread is in a call, so the process of the call was killed.
        """
        if not self._is_shared:
            for connection in connections:
                connection.close()  # the process ends in order after its connection
                connection.process.close()
            return
        results = [connection.close() for connection in connections]
        serves_on = all(results) and not is_busy
        with self._lock:
            process, self._shared = self._shared, None
        if process is None:
            return
        if serves_on:
            process.release()
        else:
            process.kill()

    def _open(self, process: UdfProcess) -> UdfConnection:
        return process.open(self._udf, self._start, self._chunks)
