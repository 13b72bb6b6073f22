"""Runs a program until its end, or until the end of the starting process.

The command is `python supervised.py PROGRAM ARGUMENT...`: by path, without any package, and as
leader of a process group. Standard input holds the length of the program's input in bytes as a
first line, and then the input. The end of standard input means the end of the starting process, and
the group is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Returns the program's exit status."""
    received = b""
    while b"\n" not in received:
        received += os.read(0, 1)
    length = int(received)
    received = b""
    while len(received) < length:
        received += os.read(0, length - len(received))
    threading.Thread(target=_end_with_starter, daemon=True).start()
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)  # noqa: S603 - the command of the starting process
    process.communicate(received)
    return process.returncode


def _end_with_starter() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(main() & 0xFF)
