"""Calls of a UDF in a process of its own, so that it takes nothing with it when it dies."""
