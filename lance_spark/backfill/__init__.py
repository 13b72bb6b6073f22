"""The backfill engine: which rows are missing, what computes them, and what was computed before."""
