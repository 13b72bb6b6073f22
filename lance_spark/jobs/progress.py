"""Progress bars of a running job on a terminal or in a notebook; nothing where there is neither."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Progress:
    """Bars for rows computed, fragments written and fragments committed. Used by the job's thread.

    Attributes:
        title: What is being done.
        enabled: Whether to show anything; None shows it on a terminal and in a notebook.
    """

    title: str
    enabled: bool | None = None
    _bars: dict[str, Any] = field(default_factory=dict)

    def start(self, rows: int, fragments: int) -> None:
        """Begins to show a job.

        Args:
            rows: Rows that are expected, an upper bound.
            fragments: Fragments with work.
        """
        if not (_is_watched() if self.enabled is None else self.enabled):
            return
        from tqdm.auto import tqdm

        self._bars = {
            "rows": tqdm(total=rows, desc=f"{self.title}: rows", unit=" rows", unit_scale=True, dynamic_ncols=True),
            "written": tqdm(total=fragments, desc="fragments written", unit=" fragments", dynamic_ncols=True),
            "committed": tqdm(total=fragments, desc="fragments committed", unit=" fragments", dynamic_ncols=True),
        }

    def update(self, *, rows: int, written: int, committed: int) -> None:
        """Shows how far the job is."""
        for name, value in (("rows", rows), ("written", written), ("committed", committed)):
            bar = self._bars.get(name)
            if bar is not None:
                bar.update(value - bar.n)

    def close(self, status: str) -> None:
        """Ends what is shown."""
        for name, bar in self._bars.items():
            if name == "rows":
                bar.set_postfix_str(status)
            bar.close()
        self._bars = {}


def _is_watched() -> bool:
    """Tells whether output goes to a terminal, or to a notebook's cell."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    shell = sys.modules.get("IPython")
    instance = None if shell is None else shell.get_ipython()
    return instance is not None and type(instance).__name__ == "ZMQInteractiveShell"
