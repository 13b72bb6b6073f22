"""Runs a program that ends when the process that wants its result is gone.

Started as `python supervised.py PROGRAM ARGUMENT...`, by its path, without any package, and as
leader of a process group. Standard input is that of the program, after its length in bytes as a
first line; where it ends, the one who started this is gone, and the group is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Returns the program's exit status."""
    given = b""
    while b"\n" not in given:
        given += os.read(0, 1)
    length = int(given)
    given = b""
    while len(given) < length:
        given += os.read(0, length - len(given))
    threading.Thread(target=_end_with_starter, daemon=True).start()
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)  # noqa: S603 - what the starter asks for
    process.communicate(given)
    return process.returncode


def _end_with_starter() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(main() & 0xFF)
