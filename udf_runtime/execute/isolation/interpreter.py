"""The Python of a UDF's process, and its environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from udf_runtime.environments.variables import Variables

_OF_ANOTHER_PYTHON = ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python for processes of UDFs. A picklable value, for a single machine.

    Attributes:
        python: Path of the interpreter; None is the Python of this process, with its modules.
        path: First entries of its module path.
        folder: Folder of its environment.
        variables: Environment variables that the process sets before it loads the UDF.
    """

    python: str | None = None
    path: tuple[str, ...] = ()
    folder: str | None = None
    variables: Variables = field(default_factory=Variables)

    @property
    def command(self) -> list[str]:
        """Command line of the interpreter, without a module."""
        # Without the working directory on the module path, which may hold unrelated files.
        return [self.python or sys.executable, "-P"]

    def environment(self) -> dict[str, str]:
        """Returns the environment variables at the process start, without values of the UDF."""
        if self.python is None:
            path = [entry or os.getcwd() for entry in sys.path]
            return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
        # The system does not show variables that a process sets by itself.
        left_out = {*_OF_ANOTHER_PYTHON, *self.variables.in_clear()}
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        own_variables = {"PYTHONPATH": os.pathsep.join(self.path)}
        if self.folder is not None:
            own_variables["VIRTUAL_ENV"] = self.folder
        # Programs of the environment's packages come first.
        programs = os.path.dirname(self.python)
        return {**inherited, **own_variables, "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])}
