"""Histories of views that were wrong once."""

from __future__ import annotations

from tests.histories.operations import Compact
from tests.histories.views.model import Act, Go, History, Start

FOUND: dict[str, History] = {
    "two first refreshes at once, of which the second is taken back": History(
        (6, 6),
        (Start("one", "commit"), Start("two"), Act("v", Compact(all=True)), Go("one")),
    ),
}
