"""A terminal: what a script shows on one, and what Java and Spark print by themselves, whatever it does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

OF_SPARK = re.compile(
    r"WARNING: Using incubator modules: jdk.incubator.vector\n"
    r"|Traceback \(most recent call last\):\n(?:  File \S*pyspark/daemon.py.*\n(?:    .*\n)*)+BrokenPipeError: .*\n"
)
"""What Java itself says at every start of Spark, before any setting is read, and what Spark's daemon of Python workers says, rarely, of a worker
whose session ended while it was asked for."""

_WIDTH = 100
_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def written_to_terminal(script: str, *arguments: str, folder: Path) -> str:
    """Runs Python code on a terminal of 100 columns, and returns all that is written to it, control characters included."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _WIDTH, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=folder,
        env={**kept, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(its)
    written = bytearray()
    try:
        while data := os.read(ours, 65536):
            written += data
    except OSError:
        pass  # Linux says so when the last writer has closed it
    finally:
        os.close(ours)
    text = written.decode()
    assert process.wait() == 0, text
    return text


def rendered(text: str) -> list[str]:
    """Returns the lines that a terminal shows of what is written to it, however often they are written over."""
    lines, row, column = [""], 0, 0
    for codes, letter, move, plain in _TOKEN.findall(text):
        if move == "\r":
            column = 0
        elif move == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif letter == "A":
            row = max(0, row - int(codes or 1))
        elif letter == "K":
            lines[row] = {"2": "", "1": " " * column + lines[row][column:]}.get(codes, lines[row][:column])
        elif letter == "J":
            raise NotImplementedError("clears the screen")
        for character in plain:
            if column == _WIDTH:
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            line = lines[row].ljust(column)
            lines[row] = line[:column] + character + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
