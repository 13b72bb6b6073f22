"""A terminal: the display of a script, and the lines that Java and Spark print by themselves."""

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
"""Lines that Java prints at every start of Spark before any settings, and a rare line of Spark's Python daemon about a
worker whose session ended during its request.
"""

_WIDTH = 100
_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def written_to_terminal(script: str, *arguments: str, folder: Path) -> str:
    """Runs Python code on a terminal of 100 columns, and returns its whole output, control characters included."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _WIDTH, 0, 0))
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=folder,
        env={**variables, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(its)
    output = bytearray()
    try:
        while data := os.read(ours, 65536):
            output += data
    except OSError:
        pass  # Linux raises this error after the last writer has closed the terminal
    finally:
        os.close(ours)
    text = output.decode()
    assert process.wait() == 0, text
    return text


def rendered(text: str) -> list[str]:
    """Returns the visible lines of a terminal for its output, even if lines were overwritten."""
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
            lines[row] = {"2": "", "1": " " * column + lines[row][column:]}.get(
                codes, lines[row][:column]
            )
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
