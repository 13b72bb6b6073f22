"""Stages of a running job, a line each, on a terminal or in a notebook; nothing without either."""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from lance_spark.session.sessions import stop_console_bar

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_REFRESHES_A_SECOND = 5


@dataclass(slots=True)
class _Stage:
    """How far one stage of a job is: so many of a total are `what`, such as "rows computed"."""

    title: str
    what: str
    total: int
    done: int = 0
    status: str = ""

    @property
    def text(self) -> str:
        return f"{self.done:,} of {self.total:,} {self.what} {self.status}".rstrip()


class _Sink(Protocol):
    """Where the stages of one job are shown."""

    def show(self) -> None:
        """Shows how far they are now."""

    def close(self) -> None:
        """Shows them for the last time; they stay."""


@dataclass(slots=True)
class Progress:
    """Lines for rows computed, fragments written and committed. Used by the job's thread.

    On a terminal the lines of all jobs of this process stay together below what it prints and logs
    meanwhile, each line of which is whole. What other processes write there, such as Spark's JVM,
    cannot be caught; Spark's own progress bar, which would write over the lines, is stopped for the
    rest of its session. A notebook has a small table for each job in the cell that started it.

    Attributes:
        title: What is being done.
        enabled: Whether to show anything; None shows it on a terminal and in a notebook. True shows
            the end of the job, without control characters, also where there is neither.
    """

    title: str
    enabled: bool | None = None
    _stages: dict[str, _Stage] = field(default_factory=dict)
    _sink: _Sink | None = None

    def start(self, rows: int, fragments: int, *, commits: bool = True) -> None:
        """Begins to show a job.

        Args:
            rows: Rows that are expected, an upper bound.
            fragments: Fragments with work.
            commits: Whether fragments are committed one after the other.
        """
        in_notebook = _in_notebook()
        if not (in_notebook or _on_terminal() if self.enabled is None else self.enabled):
            return
        self._stages = {
            "rows": _Stage(self.title, "rows computed", rows),
            "written": _Stage(self.title, "fragments written", fragments),
        }
        if commits:
            self._stages["committed"] = _Stage(self.title, "fragments committed", fragments)
        stages = list(self._stages.values())
        self._sink = _Cell(stages) if in_notebook else _Lines(stages)

    def update(self, *, rows: int, written: int, committed: int = 0) -> None:
        """Shows how far the job is."""
        if self._sink is None:
            return
        for name, value in (("rows", rows), ("written", written), ("committed", committed)):
            if name in self._stages:
                self._stages[name].done = value
        self._sink.show()

    def close(self, status: str) -> None:
        """Ends what is shown, which stays."""
        if self._sink is not None:
            self._stages["rows"].status = status
            self._sink.close()
        self._sink = None


class _Cell:
    """Stages in the output of a notebook's cell: a table of HTML that is replaced in place."""

    def __init__(self, stages: Sequence[_Stage]) -> None:
        from IPython.display import HTML, display

        self._stages = stages
        self._html = HTML
        self._display = display(HTML(self._table()), display_id=True)
        self._shown = time.monotonic()

    def show(self) -> None:
        if time.monotonic() - self._shown >= 1 / _REFRESHES_A_SECOND:
            self.close()

    def close(self) -> None:
        self._display.update(self._html(self._table()))
        self._shown = time.monotonic()

    def _table(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(stage.title)}</td>"
            f'<td><progress max="{max(1, stage.total)}" value="{stage.done}"></progress></td>'
            f"<td>{html.escape(stage.text)}</td></tr>"
            for stage in self._stages
        )
        return f"<table><tbody>{rows}</tbody></table>"


class _Lines:
    """Stages of one job on the terminal."""

    def __init__(self, stages: Sequence[_Stage]) -> None:
        stop_console_bar()
        self._stages = stages
        self._bars, self._tasks = _TERMINAL.begin(stages)

    def show(self) -> None:
        for stage, task in zip(self._stages, self._tasks, strict=True):
            self._bars.update(task, total=stage.total, completed=stage.done, text=stage.text)

    def close(self) -> None:
        self.show()
        _TERMINAL.end(self._tasks)


class _Terminal:
    """The lines of all jobs of this process. Any thread may use it.

    As long as there are any, the process's standard output and error and what logs to them write
    whole lines above, as far as they are terminals.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs = 0
        self._bars: Bars | None = None
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO, TextIO]] = []

    def begin(self, stages: Sequence[_Stage]) -> tuple[Bars, list[Any]]:
        """Adds the lines of a job; returns the bars, and the ids of the new ones."""
        with self._lock:
            if self._bars is None:
                self._bars = _bars()
                originals = (sys.stdout, sys.stderr)
                self._bars.start()
                self._move_logs(originals)
            self._jobs += 1
            add = self._bars.add_task
            return self._bars, [add(stage.title, total=stage.total, text=stage.text) for stage in stages]

    def end(self, tasks: Sequence[Any]) -> None:
        """Takes the lines of a job, as they are now, out of those that change."""
        with self._lock:
            assert self._bars is not None
            self._jobs -= 1
            if self._jobs:
                ended = [task for task in self._bars.tasks if task.id in tasks]
                self._bars.console.print(self._bars.make_tasks_table(ended))
                for task in tasks:
                    self._bars.remove_task(task)
                return
            bars, self._bars = self._bars, None
            for handler, original, moved in self._moved:
                if handler.stream is moved:
                    handler.setStream(original)
            self._moved = []
            bars.stop()

    def _move_logs(self, originals: Sequence[TextIO]) -> None:
        """Gives handlers that write to the terminal the streams that write above the lines."""
        loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
        handlers = {handler for logger in loggers for handler in getattr(logger, "handlers", ())}
        for original, moved in zip(originals, (sys.stdout, sys.stderr), strict=True):
            for handler in handlers if moved is not original else ():
                if isinstance(handler, logging.StreamHandler) and handler.stream is original:
                    handler.setStream(moved)
                    self._moved.append((handler, original, moved))


_TERMINAL = _Terminal()


def _bars() -> Bars:
    """Returns bars that are not drawn yet."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    class _Console(Console):
        """A console that one thread at a time draws on.

        rich looks where its lines begin, and writes over them later: two threads at once, such as
        the one that refreshes and one that prints, wrote over lines above.
        """

        drawing: threading.RLock | None = None

        def __enter__(self) -> _Console:
            if self.drawing is not None:
                self.drawing.acquire()
            super().__enter__()
            return self

        def __exit__(self, *about: object) -> None:
            try:
                super().__exit__(*about)
            finally:
                if self.drawing is not None:
                    self.drawing.release()

    console = _Console(stderr=True)
    bars = Bars(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=_REFRESHES_A_SECOND,
        redirect_stdout=_is_terminal(sys.stdout),  # what goes to a file stays there
        expand=True,
    )
    # The lock that rich has while it refreshes, so that there is one order.
    console.drawing = bars.live._lock  # noqa: SLF001 - it has no other name
    return bars


def _on_terminal() -> bool:
    return _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _in_notebook() -> bool:
    """Tells whether output goes to a notebook's cell."""
    shell = sys.modules.get("IPython")
    instance = None if shell is None else shell.get_ipython()
    return instance is not None and type(instance).__name__ == "ZMQInteractiveShell"
