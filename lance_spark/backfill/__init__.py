"""The backfill engine: selects missing rows, computes their values, and reuses earlier results."""
