"""Limits of the UDF processes of an owner: idle time and memory, from variables of the executor."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from udf_runtime.errors import UdfDefinitionError

IDLE_VARIABLE = "LANCE_SPARK_UDF_IDLE_SECONDS"
IDLE_S = 300.0
"""Seconds until an idle process ends, by default."""

MEMORY_VARIABLE = "LANCE_SPARK_UDF_MEMORY"

_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)(i?b)?\s*")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def read_idle_s() -> float:
    """Returns the seconds until an idle process ends.

    Raises:
        UdfDefinitionError: The variable has no number.
    """
    text = os.environ.get(IDLE_VARIABLE)
    try:
        seconds = IDLE_S if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise UdfDefinitionError(
            f"The environment variable {IDLE_VARIABLE}={text!r} is no number of seconds. Give a number from 0, for "
            "example 600."
        )
    return seconds


def read_memory_bytes() -> int:
    """Returns the resident bytes of all processes above which idle processes end.

    The default is half of the memory of the container, or of the machine.

    Raises:
        UdfDefinitionError: The variable has no size.
    """
    text = os.environ.get(MEMORY_VARIABLE)
    if text is None:
        return read_machine_bytes() // 2
    match = _SIZE.fullmatch(text.lower())
    if match is None:
        raise UdfDefinitionError(
            f"The environment variable {MEMORY_VARIABLE}={text!r} is no size. Give bytes, or a binary unit, for "
            "example 16g."
        )
    return int(match[1]) << _SHIFTS[match[2]]


def read_machine_bytes() -> int:
    """Returns the bytes of memory of this machine, or the limit of its container if lower."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        try:
            sizes.append(int(path.read_text()))
        except (OSError, ValueError):  # no such limit: "max"
            continue
    return min(sizes)
