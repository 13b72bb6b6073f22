"""Benchmarks: ratios of lance-spark to Spark's Parquet and to plain pylance, measured in one run."""
