"""Loads: values of other sources, matched with a table's rows by keys. Uses the engine."""
