"""Calls of a UDF in its own process, so a crash stays within this process."""
