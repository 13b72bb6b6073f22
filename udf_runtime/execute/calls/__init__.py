"""Calls of a UDF in its own process: by row, by batch, over a stream of batches, by chunk."""
