"""What a scan answers instead of rows: counts, sums, extremes, and those of groups."""
