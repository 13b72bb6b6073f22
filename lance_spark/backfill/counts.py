"""What a task counts while it works on a range."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """What calling the UDF gave, so far."""

    rows: int = 0
    retries: int = 0
    skipped: int = 0
    crashed: int = 0
    carried: int = 0
    recomputed: int = 0
    nulled: int = 0
    kept: int = 0
    held: int = 0
    added: int = 0
    again: int = 0
    failed: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"read": 0.0, "compute": 0.0, "checkpoint": 0.0, "write": 0.0}
    )
