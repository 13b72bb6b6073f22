"""NumPy as `np`; where a UDF's environment has none, what no value is an instance of.

Only the processes of UDFs with an environment of their own may lack it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

HAS_NUMPY = True
"""Whether `np` is NumPy."""

if TYPE_CHECKING:
    import numpy as np
else:
    try:
        import numpy as np
    except ModuleNotFoundError:
        HAS_NUMPY = False

        class _Absent:
            """Each attribute is a class of its own, for `isinstance` and as a key."""

            def __getattr__(self, name: str) -> type:
                made = type(name, (), {})
                setattr(self, name, made)
                return made

        np = _Absent()

__all__ = ["HAS_NUMPY", "np"]
