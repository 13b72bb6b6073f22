"""Reading: what a scan needs, how it is cut into partitions, and their Arrow batches for Spark."""
