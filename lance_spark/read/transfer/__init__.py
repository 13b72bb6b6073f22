"""Encodings that make the transfer of columns from Python to the JVM cheaper."""
