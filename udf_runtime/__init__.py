"""User-defined functions over Arrow batches, independent of where they run.

This package imports neither Spark nor Lance nor `lance_spark`, so that everything in it can be tested without a JVM and run in any
Python process. For now it only fixes that rule; definitions, policies and checkpoints of user-defined functions live here.
"""

__all__: list[str] = []
