"""NumPy as `np`, or a stand-in without any instances if NumPy is missing.

NumPy may only be missing in processes of UDFs with their own environment.
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
                absent_class = type(name, (), {})
                setattr(self, name, absent_class)
                return absent_class

        np = _Absent()

__all__ = ["HAS_NUMPY", "np"]
