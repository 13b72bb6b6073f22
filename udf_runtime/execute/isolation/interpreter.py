"""Which Python the process of a UDF runs in, and what it finds there."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from udf_runtime.environments.variables import Variables

_OF_ANOTHER_PYTHON = ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python for processes of UDFs. A picklable value, of one machine.

    Attributes:
        python: Path of the interpreter; None is that of this process, with its modules.
        path: What is first on its module path.
        folder: Folder of the environment that it belongs to.
        variables: Environment variables that the process sets before the UDF is loaded.
    """

    python: str | None = None
    path: tuple[str, ...] = ()
    folder: str | None = None
    variables: Variables = field(default_factory=Variables)

    @property
    def command(self) -> list[str]:
        """What starts it, without a module."""
        # Without the working directory on the module path: it may hold other things than modules.
        return [self.python or sys.executable, "-P"]

    def environment(self) -> dict[str, str]:
        """Returns the environment variables that it is started with: no values of the UDF's."""
        if self.python is None:
            path = [entry or os.getcwd() for entry in sys.path]
            return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
        # What the process sets by itself is not shown by the system.
        left_out = {*_OF_ANOTHER_PYTHON, *self.variables.in_clear()}
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        found = {"PYTHONPATH": os.pathsep.join(self.path)}
        if self.folder is not None:
            found["VIRTUAL_ENV"] = self.folder
        # Programs of the environment's packages come first.
        programs = os.path.dirname(self.python)
        return {**kept, **found, "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])}
