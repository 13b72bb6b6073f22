"""The backfill engine: which rows are missing, who computes them, and what is known about those that were."""
