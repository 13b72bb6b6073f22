"""Values that were computed before: records of them, checkpoints, and where their rows are now."""
