"""Progress lines of a running job, on a terminal or in a notebook; no output without either."""

from __future__ import annotations

import html
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from lance_spark.session.sessions import stop_console_bar

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_REFRESHES_A_SECOND = 5

_SHOWN_STAGES = 3


@dataclass(slots=True)
class _Stage:
    """Progress of a job's stage: `done` of `total` units; `what` names them, as "rows computed"."""

    title: str
    what: str
    total: int
    done: int = 0
    status: str = ""

    @property
    def text(self) -> str:
        return f"{self.done:,} of {self.total:,} {self.what} {self.status}".rstrip()


class _Sink(Protocol):
    """Display of a job's stages."""

    def show(self) -> None:
        """Shows the present progress."""

    def close(self) -> None:
        """Shows the final progress, and leaves the lines visible."""


@dataclass(slots=True)
class Progress:
    """Lines for rows computed, fragments written and committed. Used by the job's thread.

    On a terminal, the lines of all jobs of this process stay together below the process's prints
    and logs, which appear as whole lines. Output of other processes, such as Spark's JVM, cannot be
    caught. Spark's own progress bar would overwrite the lines, and is stopped for the rest of its
    session. A notebook shows a small table per job in the cell that started the job.

    Attributes:
        title: Title of the job.
        enabled: Whether to show progress; None shows progress on a terminal and in a notebook. True
            also shows the end of the job without either, without control characters.
    """

    title: str
    enabled: bool | None = None
    _stages: dict[str, _Stage] = field(default_factory=dict)
    _sink: _Sink | None = None

    def start(self, rows: int, fragments: int, *, commits: bool = True) -> None:
        """Begins to show a job.

        Args:
            rows: Expected rows, an upper bound.
            fragments: Fragments with work.
            commits: Whether fragments are committed successively.
        """
        in_notebook = _is_in_notebook()
        if not (in_notebook or _is_on_terminal() if self.enabled is None else self.enabled):
            return
        self._stages = {
            "rows": _Stage(self.title, "rows computed", rows),
            "written": _Stage(self.title, "fragments written", fragments),
        }
        if commits:
            self._stages["committed"] = _Stage(self.title, "fragments committed", fragments)
        stages = list(self._stages.values())
        self._sink = _Cell(stages) if in_notebook else _Lines(stages)

    def update(
        self,
        *,
        rows: int,
        written: int,
        committed: int = 0,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Shows the progress of the job, and the stages with the most of `seconds`."""
        if self._sink is None:
            return
        self._stages["rows"].status = _show_shares(seconds or {})
        for name, value in (("rows", rows), ("written", written), ("committed", committed)):
            if name in self._stages:
                self._stages[name].done = value
        self._sink.show()

    def close(self, status: str) -> None:
        """Ends the display; the last state stays visible."""
        if self._sink is not None:
            self._stages["rows"].status = status
            self._sink.close()
        self._sink = None


def _show_shares(seconds: Mapping[str, float]) -> str:
    """Returns the stages with the most time: `(compute 80 %, read 15 %, write 5 %)`."""
    total = sum(seconds.values())
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:_SHOWN_STAGES]
    shares = [
        f"{stage} {100 * seconds[stage] / total:.0f} %" for stage in longest if seconds[stage]
    ]
    return f"({', '.join(shares)})" if shares else ""


class _Cell:
    """Stages in the output of a notebook's cell: an HTML table, replaced in place."""

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
    """Stages of a job on the terminal."""

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
    """The lines of all jobs of this process. Any thread may use the terminal.

    While jobs have lines, the process's standard output and error, and logs to both, write whole
    lines above, as far as they are terminals.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs = 0
        self._bars: Bars | None = None
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO, TextIO]] = []

    def begin(self, stages: Sequence[_Stage]) -> tuple[Bars, list[Any]]:
        """Adds the lines of a job; returns the bars, and the ids of the new lines."""
        with self._lock:
            if self._bars is None:
                self._bars = _bars()
                originals = (sys.stdout, sys.stderr)
                self._bars.start()
                self._move_logs(originals)
            self._jobs += 1
            add = self._bars.add_task
            return self._bars, [
                add(stage.title, total=stage.total, text=stage.text) for stage in stages
            ]

    def end(self, tasks: Sequence[Any]) -> None:
        """Prints the final lines of a job, and removes its live lines."""
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
            for handler, original, replacement in self._moved:
                if handler.stream is replacement:
                    handler.setStream(original)
            self._moved = []
            bars.stop()

    def _move_logs(self, originals: Sequence[TextIO]) -> None:
        """Redirects handlers of the terminal to the streams that write above the lines."""
        loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
        handlers = {handler for logger in loggers for handler in getattr(logger, "handlers", ())}
        for original, replacement in zip(originals, (sys.stdout, sys.stderr), strict=True):
            for handler in handlers if replacement is not original else ():
                if isinstance(handler, logging.StreamHandler) and handler.stream is original:
                    handler.setStream(replacement)
                    self._moved.append((handler, original, replacement))


_TERMINAL = _Terminal()


def _renew_terminal() -> None:
    """Renews the terminal in a forked process: a thread of the parent may have held the lock."""
    global _TERMINAL  # noqa: PLW0603 - one terminal per process
    _TERMINAL = _Terminal()


os.register_at_fork(after_in_child=_renew_terminal)


def _bars() -> Bars:
    """Returns bars before their first drawing."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    class _Console(Console):
        """A console that serializes drawing threads.

        rich records the position of its lines, and overwrites them later. A refresh and a
        concurrent print overwrote lines above.
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
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=_REFRESHES_A_SECOND,
        redirect_stdout=_is_terminal(sys.stdout),  # output to a file stays in the file
        expand=True,
    )
    # rich's lock for refreshes, so that both locks have the same order.
    console.drawing = bars.live._lock  # noqa: SLF001 - the lock has no public name
    return bars


def _is_on_terminal() -> bool:
    return _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _is_in_notebook() -> bool:
    """Tells whether output goes to a notebook's cell."""
    shell = sys.modules.get("IPython")
    instance = None if shell is None else shell.get_ipython()
    return instance is not None and type(instance).__name__ == "ZMQInteractiveShell"
