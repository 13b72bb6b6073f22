"""What Java and Spark print by themselves, whatever a script does."""

from __future__ import annotations

import re

OF_SPARK = re.compile(
    r"WARNING: Using incubator modules: jdk.incubator.vector\n"
    r"|Traceback \(most recent call last\):\n(?:  File \S*pyspark/daemon.py.*\n(?:    .*\n)*)+BrokenPipeError: .*\n"
)
"""What Java itself says at every start of Spark, before any setting is read, and what Spark's daemon of Python workers says, rarely, of a worker
whose session ended while it was asked for."""
