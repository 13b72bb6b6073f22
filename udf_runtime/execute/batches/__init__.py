"""Batches of the calls of a UDF: their sizes, order and distinct rows."""
