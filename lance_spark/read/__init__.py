"""Reads: the input of a scan, its partitions, and the Arrow batches for Spark."""
