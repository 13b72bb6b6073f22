"""Reading: which columns and rows a scan needs, how it is cut into partitions, and how a partition becomes Arrow batches for Spark."""
