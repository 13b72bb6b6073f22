"""Benchmarks: lance-spark beside Spark's Parquet and beside pylance alone, in one run, as ratios."""
